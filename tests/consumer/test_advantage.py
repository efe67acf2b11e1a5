"""Advantages are a group's own affair."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stream_rl.consumer.advantage import group_advantages

REWARDS = st.floats(-10, 10, width=32)
TABLES = hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(2, 8)), elements=REWARDS)


@given(TABLES)
def test_equals_the_definition_row_by_row(rewards: np.ndarray) -> None:
    expected = [
        [(reward - statistics.fmean(row)) / (statistics.pstdev(row) + 1e-4) for reward in row]
        for row in rewards.tolist()
    ]
    np.testing.assert_allclose(group_advantages(rewards), expected, rtol=1e-6, atol=1e-6)


@given(TABLES, REWARDS)
def test_another_groups_rewards_change_nothing(rewards: np.ndarray, other: float) -> None:
    beside = np.vstack([rewards, np.linspace(other, other + 100, rewards.shape[1])])
    np.testing.assert_array_equal(group_advantages(beside)[:-1], group_advantages(rewards))


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7])
def test_equal_rewards_give_exactly_nothing(reward: float) -> None:
    assert not group_advantages(np.full((2, 7), reward)).any()
