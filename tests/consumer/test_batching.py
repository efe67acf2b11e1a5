"""What is selected, where it lands, and how it is divided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import sample_of, turn

from stream_rl.consumer.batching import (
    LAG_BUCKETS,
    Ints,
    flatten,
    lag_buckets,
    mini_batch_groups,
    share,
)
from stream_rl.sample import Group

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=40)


def test_a_turn_that_was_cut_is_one_turn() -> None:
    begun = replace(turn(0, [7, 8], []), complete=False, reward=0.0)
    sample = sample_of([begun, replace(turn(0, [9], [6]), reward=0.25), replace(turn(1, [10], []), reward=0.5)])
    samples = flatten([Group(0, 0, [sample])], trainer_version=0, max_staleness=0)
    assert samples.turns.tolist() == [-1, -1, -1, 0, 0, 0, -1, 1]
    assert samples.turn_rewards[0, :2].tolist() == [0.25, 0.5]


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


def test_lags_fall_into_their_buckets() -> None:
    found = [LAG_BUCKETS[place] for place in lag_buckets(np.array([0, 1, 2, 3, 4, 5, 8, 9, 30], np.int32))]
    assert found == ["0", "1", "2", "3-4", "3-4", "5-8", "5-8", ">8", ">8"]


@pytest.mark.parametrize(("observed", "prompt"), [(0, 200), (50, 200), (400, 200), (50, 2000)])
def test_shares_by_bytes_are_nearly_as_even_as_by_tokens(observed: int, prompt: int) -> None:
    random, heaviest = np.random.default_rng(0), []
    for _ in range(40):
        of_prompt = random.lognormal(np.log(prompt), 1.0, 16).astype(int)
        turns = random.integers(1, 9, 16) * 8
        generated = (turns * random.lognormal(np.log(200), 1.0, 16)).astype(int)
        seen = (turns * observed * random.lognormal(0.0, 1.0, 16)).astype(int)
        tokens = generated + seen + 8 * of_prompt
        # Of a prompt's token there are its id and about four letters.
        sizes = 8 * generated + 4 * seen + 8 * 8 * of_prompt + 100 * turns
        heaviest.append([_heaviest(tokens, share(weights.tolist(), 2)) for weights in (tokens, sizes)])
    by_tokens, by_bytes = np.mean(heaviest, axis=0)
    assert by_bytes < by_tokens + 0.1


def _heaviest(tokens: Ints, owners: list[int]) -> float:
    """The largest rank's tokens over the mean rank's."""
    loads = np.bincount(owners, tokens)
    return float(loads.max() / loads.mean())
