"""What a micro-batch selects, where it lands, and how samples are divided into passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from trajectories import ragged_groups, sample_of, turn

from stream_rl.config import TrainerConfig
from stream_rl.consumer.advantage import token_advantages
from stream_rl.consumer.batching import LAG_BUCKETS, Samples, flatten
from stream_rl.consumer.micro_batch import (
    MicroBatch,
    empty_micro_batch,
    level_passes,
    micro_batches,
    plan_passes,
)
from stream_rl.sample import Group

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=40)
LAYOUTS = pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])


def passes_of(samples: Samples, max_tokens: int, packed: bool, advantages: Any = None) -> list[MicroBatch]:
    """The micro-batches of some samples, of advantage zero unless said."""
    if advantages is None:
        advantages = np.zeros(len(samples.tokens), np.float32)
    return micro_batches(samples, advantages, plan_passes(samples.lengths, max_tokens, packed=packed), packed=packed)


def before(batch: MicroBatch, place: int) -> tuple[int, ...]:
    """The tokens of a place's sequence up to it, by the positions: packed or padded, they begin at 0."""
    tokens, positions = batch.tokens.flatten(), batch.positions.flatten()
    return tuple(tokens[place - int(positions[place]) : place + 1].tolist())


def selected(batches: list[MicroBatch]) -> list[tuple[tuple[int, ...], int, float, float, float]]:
    """Every trained token as (all tokens before it, token, rollout log-prob, advantage, temperature), sorted."""
    found = []
    for batch in batches:
        for place, *about in zip(
            batch.predictors.tolist(), batch.targets, batch.rollout_log_probs, batch.advantages, batch.temperatures,
            strict=True,
        ):  # fmt: skip
            found.append((before(batch, place), *(value.item() for value in about)))
    return sorted(found)


def expected(groups: list[Group], trainer_version: int, max_staleness: int) -> list[tuple[object, ...]]:
    """The same, read token by token from the samples."""
    found = []
    for group in groups:
        scores = np.array([sample.reward for sample in group.samples])
        for sample in group.samples:
            advantage = (sample.reward - scores.mean()) / (scores.std() + 1e-4)
            tokens, prompt = sample.tokens.tolist(), len(sample.prompt_tokens)
            for place in range(sample.response_length):
                stale = trainer_version - sample.version_steps[place] > max_staleness
                if sample.loss_mask[place] and not stale:
                    at = prompt + place
                    about = (sample.rollout_log_probs[place], np.float32(advantage), np.float32(sample.temperature))
                    found.append((tuple(tokens[:at]), tokens[at], *(float(value) for value in about)))
    return sorted(found)


@LAYOUTS
@pytest.mark.parametrize("max_staleness", [0, 3, 100])
@pytest.mark.parametrize("max_tokens", [1, 60, 10_000])
def test_exactly_the_fresh_generated_tokens_are_trained(max_staleness: int, max_tokens: int, packed: bool) -> None:
    groups = ragged_groups(3, seed=max_tokens)
    samples = flatten(groups, trainer_version=9, max_staleness=max_staleness)
    advantages = token_advantages(samples, TrainerConfig())
    found, wanted = selected(passes_of(samples, max_tokens, packed, advantages)), expected(groups, 9, max_staleness)
    assert [token[:2] for token in found] == [token[:2] for token in wanted] != []
    np.testing.assert_allclose([token[2:] for token in found], [token[2:] for token in wanted], rtol=1e-6)


@LAYOUTS
def test_a_stale_sample_keeps_its_reward_in_the_baseline(packed: bool) -> None:
    fresh, stale = (
        sample_of([turn(0, [7, 8], [], version)], index=index, reward=float(index))
        for index, version in enumerate((5, 1))
    )
    samples = flatten([Group(0, 1, [fresh, stale])], trainer_version=5, max_staleness=2)
    assert samples.loss_counts() == (2, 1, 2)
    (batch,) = passes_of(samples, 100, packed, token_advantages(samples, TrainerConfig()))
    np.testing.assert_allclose(batch.advantages, [-1.0, -1.0], rtol=1e-3)


def test_each_token_has_the_lag_of_the_version_that_wrote_it() -> None:
    lags = [0, 1, 2, 3, 4, 5, 8, 9, 30]
    mixed = sample_of([turn(number, [7 + number], [6, 6], 30 - lag) for number, lag in enumerate(lags)], index=0)
    samples = flatten([Group(0, 0, [mixed])], trainer_version=30, max_staleness=99)
    (batch,) = passes_of(samples, 100, packed=True)
    assert batch.targets.tolist() == [7 + number for number in range(len(lags))]
    assert [LAG_BUCKETS[bucket] for bucket in batch.buckets] == ["0", "1", "2", "3-4", "3-4", "5-8", "5-8", ">8", ">8"]


@LAYOUTS
@pytest.mark.parametrize("max_tokens", [1, 60, 10_000])
def test_rows_are_sequences_and_places_lead_back(max_tokens: int, packed: bool) -> None:
    samples = flatten(ragged_groups(3, seed=7), trainer_version=9, max_staleness=3)
    sample_of_place = np.repeat(np.arange(len(samples.lengths)), samples.lengths)
    places = []
    for batch in passes_of(samples, max_tokens, packed):
        np.testing.assert_array_equal(samples.tokens[batch.places], batch.targets)
        for row, count in enumerate(batch.row_counts):
            of_row = batch.places[batch.rows == row].numpy()
            assert len(of_row) == count
            assert len(set(sample_of_place[of_row])) <= 1
        places += batch.places.tolist()
    assert sorted(places) == np.flatnonzero(samples.carries_loss).tolist()


@LAYOUTS
def test_positions_begin_anew_in_every_sequence(packed: bool) -> None:
    samples = flatten(ragged_groups(2, seed=7), trainer_version=9, max_staleness=9)
    (batch,) = passes_of(samples, 10_000, packed)
    assert sorted(batch.lengths) == sorted(samples.lengths.tolist())
    if packed:
        expected = np.concatenate([np.arange(length) for length in batch.lengths])
        assert batch.positions.tolist() == [expected.tolist()]
        assert list(batch.lengths) == sorted(batch.lengths, reverse=True)
    else:
        assert batch.positions.tolist() == [list(range(max(batch.lengths)))] * len(batch.lengths)


def padded_tokens(lengths: NDArray[np.int64], packed: bool) -> int:
    return int(lengths.sum() if packed else len(lengths) * lengths.max())


@LAYOUTS
@given(lengths=LENGTHS, max_tokens=st.integers(1, 200))
def test_passes_hold_every_sample_once_under_the_token_limit(packed: bool, lengths: list[int], max_tokens: int) -> None:
    array = np.array(lengths)
    passes = plan_passes(array, max_tokens, packed=packed)
    assert sorted(np.concatenate(passes).tolist()) == list(range(len(lengths)))
    for rows in passes:
        assert len(rows) == 1 or padded_tokens(array[rows], packed) <= max_tokens


@given(LENGTHS, st.integers(50, 200))
def test_packed_passes_are_few(lengths: list[int], max_tokens: int) -> None:
    fewest = -(-sum(lengths) // max_tokens)
    # Any two passes of first fit hold more than one limit together.
    assert len(plan_passes(np.array(lengths), max_tokens, packed=True)) <= 2 * fewest


@given(LENGTHS, st.integers(50, 200), st.integers(0, 3))
def test_level_passes_hold_the_same_in_as_many(lengths: list[int], max_tokens: int, more: int) -> None:
    array = np.array(lengths)
    plan = plan_passes(array, max_tokens, packed=True)
    level = level_passes(plan, array, max_tokens, len(plan) + more)
    assert sorted(np.concatenate(level).tolist()) == list(range(len(lengths)))
    assert len(level) <= len(plan) + more
    assert max(array[rows].sum() for rows in level) <= max_tokens
    assert all(len(rows) for rows in level)


def test_level_passes_are_even() -> None:
    lengths = np.array([50, 30, 30, 20, 10, 10, 10, 10, 10])
    plan = plan_passes(lengths, 100, packed=True)
    assert [lengths[rows].sum() for rows in plan] == [100, 80]
    assert [lengths[rows].sum() for rows in level_passes(plan, lengths, 100, 3)] == [60, 60, 60]


def test_neighbours_in_length_share_a_padded_pass() -> None:
    passes = plan_passes(np.array([9, 1, 9, 1]), 18, packed=False)
    assert [rows.tolist() for rows in passes] == [[0, 2], [1, 3]]


@LAYOUTS
def test_no_samples_make_no_pass_and_the_empty_pass_carries_nothing(packed: bool) -> None:
    samples = flatten([], trainer_version=0, max_staleness=0)
    for turn_discount in (None, 0.5):
        advantages = token_advantages(samples, TrainerConfig(turn_discount=turn_discount))
        assert passes_of(samples, 100, packed, advantages) == []
    assert samples.loss_counts() == (0, 0, 0)
    batch = empty_micro_batch()
    assert batch.tokens.numel() == 1
    assert len(batch.targets) == len(batch.predictors) == 0
    assert level_passes([], samples.lengths, 100, 3) == []
