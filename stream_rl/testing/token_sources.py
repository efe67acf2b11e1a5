"""What a fake engine writes instead of a model."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

__all__ = ["TokenSource", "scripted", "seeded"]

TokenSource = Callable[[Sequence[int]], Iterator[tuple[int, float]]]
"""Prompt ids -> ids and log-probs one by one; a source that ends, ends the request with "stop"."""


def scripted(*replies: Sequence[int], log_prob: float = -0.5) -> TokenSource:
    """Request n is answered with replies[n], and from the first again when they are used up."""
    requests = itertools.count()

    def source(_prompt: Sequence[int]) -> Iterator[tuple[int, float]]:
        # The reply is taken when the request arrives, not when its first token is asked for.
        reply = replies[next(requests) % len(replies)]
        return ((token, log_prob) for token in reply)

    return source


def seeded(seed: int, vocab_size: int) -> TokenSource:
    """Endless ids that depend on nothing but the seed and the ids before them, as a model's greedy ones do.

    So a generation that was cut and goes on from there equals one that was not.
    """

    def source(prompt: Sequence[int]) -> Iterator[tuple[int, float]]:
        state = hashlib.blake2b(np.array([seed, *prompt], np.int64).tobytes(), digest_size=8)
        while True:
            digest = state.digest()
            token = int.from_bytes(digest[:4], "big") % vocab_size
            state.update(np.int64(token).tobytes())
            yield token, -(digest[4] + 1) / 64

    return source
