"""Where the seconds go: of a step, of a weight update."""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

__all__ = ["timed"]


@contextmanager
def timed(seconds: MutableMapping[str, float], part: str) -> Iterator[None]:
    """Adds the seconds that the block takes to those of `part`."""
    started = time.perf_counter()
    yield
    seconds[part] += time.perf_counter() - started
