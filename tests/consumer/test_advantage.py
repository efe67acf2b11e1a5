"""Advantages are a group's own affair."""

from __future__ import annotations

import statistics
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stream_rl.config_trainer import AdvantageKind
from stream_rl.consumer.advantage import group_advantages, rewards_to_go, turn_advantages

REWARDS = st.floats(-10, 10, width=32)
KINDS = st.sampled_from(get_args(AdvantageKind))
TABLES = hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(2, 8)), elements=REWARDS)


def by_definition(row: list[float], kind: AdvantageKind) -> list[float]:
    mean = statistics.fmean(row)
    if kind == "grpo":
        return [(reward - mean) / (statistics.pstdev(row) + 1e-4) for reward in row]
    if kind == "dr_grpo":
        return [reward - mean for reward in row]
    return [reward - statistics.fmean(row[:place] + row[place + 1 :]) for place, reward in enumerate(row)]


@given(TABLES, KINDS)
def test_equals_the_definition_row_by_row(rewards: np.ndarray, kind: AdvantageKind) -> None:
    expected = [by_definition(row, kind) for row in rewards.tolist()]
    np.testing.assert_allclose(group_advantages(rewards, kind), expected, rtol=1e-6, atol=1e-6)


@given(TABLES, REWARDS, KINDS)
def test_another_groups_rewards_change_nothing(rewards: np.ndarray, other: float, kind: AdvantageKind) -> None:
    beside = np.vstack([rewards, np.linspace(other, other + 100, rewards.shape[1])])
    np.testing.assert_array_equal(group_advantages(beside, kind)[:-1], group_advantages(rewards, kind))


@pytest.mark.parametrize("kind", get_args(AdvantageKind))
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7])
def test_equal_rewards_give_exactly_nothing(reward: float, kind: AdvantageKind) -> None:
    assert not group_advantages(np.full((2, 7), reward), kind).any()


@given(TABLES, st.floats(0, 1))
def test_a_turn_is_credited_with_what_comes_from_it_on(rewards: np.ndarray, discount: float) -> None:
    expected = [
        [sum(discount ** (later - turn) * row[later] for later in range(turn, len(row))) for turn in range(len(row))]
        for row in rewards.tolist()
    ]
    np.testing.assert_allclose(rewards_to_go(rewards, discount), expected, rtol=1e-6, atol=1e-6)


@given(TABLES, KINDS, st.data())
def test_turns_are_compared_with_the_siblings_that_came_so_far(
    returns: np.ndarray, kind: AdvantageKind, data: st.DataObject
) -> None:
    siblings, turns = returns.shape
    counts = np.array(data.draw(st.lists(st.integers(0, turns), min_size=siblings, max_size=siblings)), np.int64)
    found = turn_advantages(returns, counts, kind)
    for turn in range(turns):
        present = np.flatnonzero(counts > turn)
        assert not np.delete(found[:, turn], present).any()
        if len(present) == 1:
            assert found[present[0], turn] == 0.0
        elif len(present) > 1:
            expected = by_definition(returns[present, turn].tolist(), kind)
            np.testing.assert_allclose(found[present, turn], expected, rtol=1e-6, atol=1e-6)
