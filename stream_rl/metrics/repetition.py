"""How much of a text repeats what it said before: high values announce a collapsed policy."""

from __future__ import annotations

import numpy as np

from stream_rl.sample import Int32

__all__ = ["N", "repetition"]

N = 8
"""Tokens of a phrase: long enough that a numbered list or a tool call's frame does not count."""


def repetition(tokens: Int32) -> float | None:
    """Share of the phrases of N tokens that stood in `tokens` (int32 (g,)) before; None for fewer than N tokens."""
    if len(tokens) < N:
        return None
    phrases = np.lib.stride_tricks.sliding_window_view(np.ascontiguousarray(tokens), N)
    # As one item of N * 4 bytes each, they are told apart without a row-wise sort.
    whole = np.ascontiguousarray(phrases).view(np.dtype((np.void, N * tokens.itemsize))).ravel()
    return 1.0 - len(np.unique(whole)) / len(whole)
