"""The share of a text that it had said before."""

from __future__ import annotations

import numpy as np
import pytest

from stream_rl.metrics.repetition import N, repetition


def test_a_text_shorter_than_a_phrase_has_none() -> None:
    assert repetition(np.arange(N - 1, dtype=np.int32)) is None


def test_a_text_without_repetition() -> None:
    assert repetition(np.arange(100, dtype=np.int32)) == 0.0


def test_one_token_for_ever() -> None:
    assert repetition(np.zeros(100, np.int32)) == pytest.approx(1 - 1 / 93)


def test_as_counted_by_hand() -> None:
    tokens = np.random.default_rng(0).integers(0, 2, 200).astype(np.int32)
    phrases = [tuple(tokens[at : at + N].tolist()) for at in range(len(tokens) - N + 1)]
    assert repetition(tokens) == pytest.approx(1 - len(set(phrases)) / len(phrases))
