"""Labels that stand for something unbounded are few; an environment has one name everywhere."""

from __future__ import annotations

import pytest

from stream_rl.config import Config
from stream_rl.envs.loading import load_environment
from stream_rl.metrics.labels import LENGTHS, environment_label, length_bucket, turn_label


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(0, 0), (256, 0), (257, 1), (1024, 1), (4096, 2), (65536, 4), (10**9, 5)]
)
def test_a_bound_belongs_to_the_shorter_bucket(tokens: int, bucket: int) -> None:
    assert length_bucket(tokens) == LENGTHS[bucket]


def test_late_turns_share_a_label() -> None:
    assert [turn_label(index) for index in (0, 15, 16, 400)] == ["0", "15", ">=16", ">=16"]


def label(**environment: str) -> str:
    return environment_label(Config.parse({"run": "r", "model": {"path": "m"}, "environment": environment}))


def test_the_supervisor_names_an_environment_as_producers_do() -> None:
    assert label(path="guess_number") == load_environment("guess_number").name
    assert label(path="stream_rl.envs.arithmetic") == load_environment("stream_rl.envs.arithmetic").name
    assert label(path="worlds/maze.py") == "maze"
    assert label() == "single_turn_agent"
