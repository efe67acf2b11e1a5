"""Lags by hand: tokens, samples, groups, and the parts that a sample's lag is made of."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.staleness import group_lag, lag_parts, token_lags, written_by


def test_tokens_count_from_the_version_that_wrote_them() -> None:
    assert token_lags(np.array([3, -1, 5, 7], np.int32), 7).tolist() == [4, 0, 2, 0]


def test_a_sample_was_written_by_its_oldest_and_newest_version() -> None:
    assert written_by(np.array([-1, 4, 3, -1, 6], np.int32), 7) == (3, 6)
    assert written_by(np.array([-1, -1], np.int32), 7) == (7, 7)


def test_a_groups_lag_is_that_of_its_admission() -> None:
    assert group_lag(2, 7) == 5


def test_the_parts_of_a_lag() -> None:
    """Version 9 trains; the first sample was written by 3 to 5, its sibling by 4 to 7."""
    parts = lag_parts(np.array([3.0, 4.0]), np.array([5.0, 7.0]), 9)
    assert parts.generating.tolist() == [2, 3]
    assert parts.siblings.tolist() == [2, 0]
    assert parts.ready.tolist() == [2, 2]
    assert parts.lag.tolist() == [6, 5]


VERSIONS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted), min_size=1, max_size=8)


@given(versions=VERSIONS, waited=st.integers(0, 5))
def test_the_parts_add_up_to_the_oldest_tokens_lag(versions: list[list[int]], waited: int) -> None:
    oldest, newest = np.array(versions, np.float64).T
    trainer = int(newest.max()) + waited
    parts = lag_parts(oldest, newest, trainer)
    assert all((part >= 0).all() for part in parts)
    assert (parts.lag == trainer - oldest).all()
    assert (lag_parts(oldest[None], newest[None], trainer).lag == parts.lag).all()
