"""The line of steps.jsonl, from samples whose figures are counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from trajectories import sample_of, turn

from stream_rl.consumer.batching import flatten
from stream_rl.consumer.step_record import SAMPLE_COLUMNS, sample_rows, step_record
from stream_rl.sample import Group, LedgerEntry

# Step 6 starts from version 5; tokens older than 2 versions carry no loss.
OLD = sample_of([turn(0, [7, 8], [9, 9], 2), turn(1, [8], [], 4)], index=0, reward=0.0)
NEW = sample_of([turn(0, [7, 8, 9, 10], [], 5)], index=1, reward=1.0)
FIRST, SECOND = Group(31, 2, [OLD, NEW]), Group(30, 4, [NEW, NEW])
ENTRY = LedgerEntry(6, (31, 30), max_staleness=2, max_lag=3)


def rows(groups: list[Group]) -> np.ndarray:
    return sample_rows(groups, flatten(groups, trainer_version=5, max_staleness=2))


def test_the_line_says_what_the_samples_were() -> None:
    table = rows([FIRST, SECOND]).reshape(2, 2, len(SAMPLE_COLUMNS))
    record = step_record(ENTRY, table)
    assert record == {
        "step": 6, "groups": [31, 30], "group_v0": [2, 4],
        "reward_mean": 0.75, "reward_std": pytest.approx(np.std([0, 1, 1, 1])),
        "response_length_mean": pytest.approx(17 / 4), "response_length_max": 5, "turns_mean": 1.25,
        "generated_tokens": 15, "trained_tokens": 13, "masked_tokens": 2, "masked_by_length": {"0-256": 2},
        "oldest_group_length": 5, "sample_lags": [2.333, 0.0, 0.0, 0.0],
        "token_lag_mean": pytest.approx(7 / 15), "token_lag_max": 3, "trained_token_lag_max": 1,
        "sample_lag_mean": 0.75, "lag_parts": {"generating": 0.5, "siblings": 0.25, "ready": 0.0},
        "group_lag_mean": 2.0, "group_lag_max": 3, "max_staleness": 2, "max_lag": 3,
        "versions_max": 2, "versions_mean": 1.25, "multi_version_samples": 1,
    }  # fmt: skip


def test_ranks_parts_add_up_to_the_whole() -> None:
    parts = np.zeros((2, 2, 2, len(SAMPLE_COLUMNS)))
    parts[0][[1]] = rows([SECOND]).reshape(1, 2, len(SAMPLE_COLUMNS))
    parts[1][[0]] = rows([FIRST]).reshape(1, 2, len(SAMPLE_COLUMNS))
    np.testing.assert_array_equal(parts.sum(axis=0), rows([FIRST, SECOND]).reshape(2, 2, len(SAMPLE_COLUMNS)))


def test_a_rank_without_groups_has_no_rows() -> None:
    assert rows([]).shape == (0, len(SAMPLE_COLUMNS))
