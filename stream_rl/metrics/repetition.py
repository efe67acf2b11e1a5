"""How much of a text repeats what it said before: high values announce a collapsed policy."""

from __future__ import annotations

import numpy as np

from stream_rl.sample import Int32

__all__ = ["N", "repetition"]

N = 8
"""Tokens of a phrase: long enough that a numbered list or a tool call's frame does not count."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that no digit is lost; of two different phrases one pair in 2**64 gets the same number."""


def repetition(tokens: Int32) -> float | None:
    """Share of the phrases of N tokens that stood in `tokens` (int32 (g,)) before; None for fewer than N tokens."""
    if len(tokens) < N:
        return None
    # A number for each phrase, by Horner's rule modulo 2**64: sorting these costs a fifth of sorting the phrases.
    ids = np.asarray(tokens).astype(np.uint64)
    phrases = np.zeros(len(ids) - N + 1, np.uint64)
    for place in range(N):
        phrases = phrases * _FACTOR + ids[place : place + len(phrases)]
    phrases.sort()
    repeated = int((phrases[1:] == phrases[:-1]).sum())
    return repeated / len(phrases)
