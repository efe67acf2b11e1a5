"""What is selected, where it lands, and how it is divided."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import ragged_groups, sample_of, turn

from stream_rl.consumer.batching import (
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
    found, wanted = selected(micro_batches(samples, max_tokens)), expected(groups, 9, max_staleness)
    assert [token[:2] for token in found] == [token[:2] for token in wanted] != []
    np.testing.assert_allclose([token[2:] for token in found], [token[2:] for token in wanted], rtol=1e-6)


def test_a_stale_sample_keeps_its_reward_in_the_baseline() -> None:
    fresh, stale = (
        sample_of([turn(0, [7, 8], [], version)], index=index, reward=float(index))
        for index, version in enumerate((5, 1))
    )
    samples = flatten([Group(0, 1, [fresh, stale])], trainer_version=5, max_staleness=2)
    assert samples.carries_loss.sum() == 2
    np.testing.assert_allclose(samples.advantages, [-1.0, 1.0], rtol=1e-3)


def test_newest_are_the_tokens_by_the_version_that_the_step_starts_from() -> None:
    mixed = sample_of([turn(0, [7], [9], 4), turn(1, [8], [], 5)], index=0)
    samples = flatten([Group(0, 4, [mixed])], trainer_version=5, max_staleness=8)
    assert samples.tokens[samples.newest].tolist() == [8]


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
    assert micro_batches(flatten([], trainer_version=0, max_staleness=0), 100) == []
    batch = empty_micro_batch()
    assert batch.tokens.numel() == 1
    assert len(batch.targets) == len(batch.predictors) == 0
