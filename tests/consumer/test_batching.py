"""What is selected, where it lands, and how it is divided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import ragged_groups, sample_of, turn

from stream_rl.config import TrainerConfig
from stream_rl.consumer.advantage import token_advantages
from stream_rl.consumer.batching import (
    LAG_BUCKETS,
    MicroBatch,
    empty_micro_batch,
    flatten,
    micro_batches,
    mini_batch_groups,
    plan_micro_batches,
    share,
)
from stream_rl.sample import Group

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=40)


def selected(batches: list[MicroBatch]) -> list[tuple[tuple[int, ...], int, float, float, float]]:
    """Every trained token as (all tokens before it, token, rollout log-prob, advantage, temperature), sorted."""
    found = []
    for batch in batches:
        width = batch.tokens.shape[1]
        for place, *about in zip(
            batch.predictors.tolist(), batch.targets, batch.rollout_log_probs, batch.advantages, batch.temperatures,
            strict=True,
        ):  # fmt: skip
            before = tuple(batch.tokens[place // width, : place % width + 1].tolist())
            found.append((before, *(value.item() for value in about)))
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


@pytest.mark.parametrize("max_staleness", [0, 3, 100])
@pytest.mark.parametrize("max_tokens", [1, 60, 10_000])
def test_exactly_the_fresh_generated_tokens_are_trained(max_staleness: int, max_tokens: int) -> None:
    groups = ragged_groups(3, seed=max_tokens)
    samples = flatten(groups, trainer_version=9, max_staleness=max_staleness)
    advantages = token_advantages(samples, TrainerConfig())
    found, wanted = selected(micro_batches(samples, advantages, max_tokens)), expected(groups, 9, max_staleness)
    assert [token[:2] for token in found] == [token[:2] for token in wanted] != []
    np.testing.assert_allclose([token[2:] for token in found], [token[2:] for token in wanted], rtol=1e-6)


def test_a_stale_sample_keeps_its_reward_in_the_baseline() -> None:
    fresh, stale = (
        sample_of([turn(0, [7, 8], [], version)], index=index, reward=float(index))
        for index, version in enumerate((5, 1))
    )
    samples = flatten([Group(0, 1, [fresh, stale])], trainer_version=5, max_staleness=2)
    assert samples.loss_counts() == (2, 1, 2)
    (batch,) = micro_batches(samples, token_advantages(samples, TrainerConfig()), 100)
    np.testing.assert_allclose(batch.advantages, [-1.0, -1.0], rtol=1e-3)


def test_each_token_has_the_lag_of_the_version_that_wrote_it() -> None:
    lags = [0, 1, 2, 3, 4, 5, 8, 9, 30]
    mixed = sample_of([turn(number, [7 + number], [6, 6], 30 - lag) for number, lag in enumerate(lags)], index=0)
    samples = flatten([Group(0, 0, [mixed])], trainer_version=30, max_staleness=99)
    (batch,) = micro_batches(samples, np.zeros(len(samples.tokens), np.float32), 100)
    assert batch.targets.tolist() == [7 + number for number in range(len(lags))]
    assert [LAG_BUCKETS[bucket] for bucket in batch.buckets] == ["0", "1", "2", "3-4", "3-4", "5-8", "5-8", ">8", ">8"]


@pytest.mark.parametrize("max_tokens", [1, 60, 10_000])
def test_rows_are_sequences_and_places_lead_back(max_tokens: int) -> None:
    samples = flatten(ragged_groups(3, seed=7), trainer_version=9, max_staleness=3)
    sample_of_place = np.repeat(np.arange(len(samples.lengths)), samples.lengths)
    places = []
    for batch in micro_batches(samples, np.zeros(len(samples.tokens), np.float32), max_tokens):
        np.testing.assert_array_equal(samples.tokens[batch.places], batch.targets)
        for row, count in enumerate(batch.row_counts):
            of_row = batch.places[batch.rows == row].numpy()
            assert len(of_row) == count
            assert len(set(sample_of_place[of_row])) <= 1
        places += batch.places.tolist()
    assert sorted(places) == np.flatnonzero(samples.carries_loss).tolist()


def test_a_turn_that_was_cut_is_one_turn() -> None:
    begun = replace(turn(0, [7, 8], []), complete=False, reward=0.0)
    sample = sample_of([begun, replace(turn(0, [9], [6]), reward=0.25), replace(turn(1, [10], []), reward=0.5)])
    samples = flatten([Group(0, 0, [sample])], trainer_version=0, max_staleness=0)
    assert samples.turns.tolist() == [-1, -1, -1, 0, 0, 0, -1, 1]
    assert samples.turn_rewards[0, :2].tolist() == [0.25, 0.5]


@given(LENGTHS, st.integers(1, 200))
def test_passes_hold_every_sample_once_under_the_token_limit(lengths: list[int], max_tokens: int) -> None:
    array = np.array(lengths)
    passes = plan_micro_batches(array, max_tokens)
    assert sorted(np.concatenate(passes).tolist()) == list(range(len(lengths)))
    for rows in passes:
        assert len(rows) == 1 or len(rows) * array[rows].max() <= max_tokens


def test_neighbours_in_length_share_a_pass() -> None:
    passes = plan_micro_batches(np.array([9, 1, 9, 1]), 18)
    assert [rows.tolist() for rows in passes] == [[0, 2], [1, 3]]


@given(LENGTHS, st.integers(1, 6))
def test_ranks_are_balanced(weights: list[int], ranks: int) -> None:
    owners = share(weights, ranks)
    loads = [
        sum(weight for weight, owner in zip(weights, owners, strict=True) if owner == rank) for rank in range(ranks)
    ]
    assert max(loads) <= sum(weights) / ranks + max(weights)
    assert len(weights) < ranks or min(loads) > 0


@given(st.integers(1, 40), st.integers(1, 8))
def test_mini_batches_divide_the_groups_evenly(groups: int, mini_batches: int) -> None:
    dealt = mini_batch_groups(range(groups), mini_batches)
    assert sorted(place for places in dealt for place in places) == list(range(groups))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_no_samples_make_no_pass_and_the_empty_pass_carries_nothing() -> None:
    samples = flatten([], trainer_version=0, max_staleness=0)
    for turn_discount in (None, 0.5):
        advantages = token_advantages(samples, TrainerConfig(turn_discount=turn_discount))
        assert micro_batches(samples, advantages, 100) == []
    assert samples.loss_counts() == (0, 0, 0)
    batch = empty_micro_batch()
    assert batch.tokens.numel() == 1
    assert len(batch.targets) == len(batch.predictors) == 0
