"""Where a step's seconds go."""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

__all__ = ["PARTS", "TRAIN_PARTS", "timed"]

PARTS = ("wait", "load", "train", "publish", "checkpoint")
"""What a step is made of."""
TRAIN_PARTS = ("pack", "forward_backward", "optimizer")
"""What its training is made of."""


@contextmanager
def timed(seconds: MutableMapping[str, float], part: str) -> Iterator[None]:
    """Adds the seconds that the block takes to those of `part`."""
    started = time.perf_counter()
    yield
    seconds[part] += time.perf_counter() - started
