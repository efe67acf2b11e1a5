"""Labels that a dataset may hold, and what environments say of those that they cannot use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stream_rl.envs.base import EnvSample
from stream_rl.envs.labels import label_parts, whole_number
from stream_rl.envs.loading import load_environment
from stream_rl.errors import DataError


@pytest.mark.parametrize("label", [7, 7.0, "7", " 7 "])
def test_a_whole_number_may_be_written_in_several_ways(label: Any) -> None:
    assert whole_number(label, "game", 1, 8) == 7


@pytest.mark.parametrize(
    "label", [None, True, 7.5, float("nan"), float("inf"), "seven", "7.0", [7], {"label": 7}, 0, 9, "9", -7]
)
def test_what_is_none_is_refused_with_the_field(label: Any) -> None:
    with pytest.raises(DataError, match=r"needs a whole number from 1 to 8: mend the row, or .* data\.label_field"):
        whole_number(label, "game", 1, 8)


@pytest.mark.parametrize("label", [None, 5, "seed", ["seed"], {"index": 1}])
def test_a_mapping_without_its_parts_is_refused(label: Any) -> None:
    assert label_parts({"seed": 1, "index": 2}, "game", "index", "seed") == [2, 1]
    with pytest.raises(DataError, match="needs a mapping with seed and index"):
        label_parts(label, "game", "seed", "index")


@pytest.mark.parametrize(
    ("environment", "args", "label"),
    [
        ("guess_number", {}, 9),
        ("guess_number", {}, "low"),
        ("arithmetic", {}, None),
        ("arithmetic", {}, -1),
        ("quadrant_each_turn", {}, "left"),
        ("grid_walk_images", {}, 3),
        ("gymnasium", {"id": "FrozenLake-v1"}, 3),
        ("minigrid", {"id": "MiniGrid-Empty-5x5-v0"}, {"seed": "x"}),
        ("textarena", {"id": "GuessTheNumber-v0"}, None),
        ("reasoning_gym", {"dataset": "chain_sum"}, {"seed": 0}),
        ("tau2", {"domain": "mock"}, "create_task_1"),
    ],
)
def test_each_environment_says_what_label_it_needs(environment: str, args: dict[str, Any], label: Any) -> None:
    module, given = load_environment(environment), SimpleNamespace(**args)
    with pytest.raises(DataError, match=f"a row's label is .*{environment}' needs a .*data.label_field"):
        module.build_env(sample=EnvSample("?", label), args=given, **module.named(given))
