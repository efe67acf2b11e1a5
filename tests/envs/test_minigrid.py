"""Worlds of minigrid, seen as pictures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream_rl.envs.base import EnvSample, ResumeClass, resume_class
from stream_rl.envs.loading import load_environment
from stream_rl.errors import ActionError, EnvironmentLoadError

pytest.importorskip("minigrid")

EMPTY = {"id": "MiniGrid-Empty-5x5-v0"}
TO_THE_GOAL = ("forward", "forward", "right", "forward", "forward")


def opened(args: dict[str, Any], index: int = 0) -> Any:
    """The episode of a prompt."""
    module, given = load_environment("minigrid"), SimpleNamespace(**args)
    assert module.prompt is not None
    row = module.prompt(0, index, given)
    return module.build_env(sample=EnvSample(row["prompt"], row["label"]), args=given, **module.named(given))


def pixels(observation: Any) -> np.ndarray:
    (image,) = observation["multi_modal_data"]["image"]
    return np.asarray(image)


def test_the_prompt_has_the_mission_and_the_actions() -> None:
    module = load_environment("minigrid")
    assert module.prompt is not None
    row = module.prompt(0, 1, SimpleNamespace(**EMPTY))
    assert row["prompt"] == (
        "Mission: get to the green goal square. Answer every time with one action: left, right, forward."
    )
    assert row == module.prompt(0, 1, SimpleNamespace(**EMPTY))
    assert row["label"] != module.prompt(0, 2, SimpleNamespace(**EMPTY))["label"]


def test_an_episode_is_shown_as_pictures_and_won() -> None:
    env = opened(EMPTY)
    before = pixels(env.reset()[0])
    assert before.shape == (5 * 16, 5 * 16, 3)
    for action in TO_THE_GOAL[:-1]:
        seen, done, info = env.step(f" {action.title()}.\n")
        assert (done, info["reward"]) == (False, 0.0)
    assert not np.array_equal(pixels(seen), before)
    _, done, info = env.step(TO_THE_GOAL[-1])
    assert done
    assert 0.9 < info["reward"] < 1.0
    env.close()


def test_the_agents_view_the_size_of_a_tile_and_blank_pictures() -> None:
    whole, agent, blank = (
        pixels(opened({**EMPTY, **more}).reset()[0])
        for more in ({"tile": 8}, {"view": "agent"}, {"blank_observations": True})
    )
    assert whole.shape == (40, 40, 3)
    assert agent.shape == (7 * 16, 7 * 16, 3)
    assert agent.any()
    assert not blank.any()


def test_what_is_no_action_is_the_models_mistake() -> None:
    env = opened(EMPTY)
    env.reset()
    for word in ("jump", "toggle"):
        with pytest.raises(ActionError, match="Answer with one of: left, right, forward"):
            env.step(word)
    assert opened({**EMPTY, "actions": ["toggle"]})._words == ("toggle",)


def test_the_same_actions_show_the_same_pictures() -> None:
    played = []
    for _ in range(2):
        env = opened({"id": "MiniGrid-DoorKey-5x5-v0"}, index=3)
        assert resume_class(env) is ResumeClass.REPLAY
        played.append([pixels(env.reset()[0]), *(pixels(env.step("forward")[0]) for _ in range(4))])
    assert all(np.array_equal(one, other) for one, other in zip(*played, strict=True))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "environment.args.id is missing"),
        ({"id": "MiniGrid-Nowhere-v0"}, "environment.args.id='MiniGrid-Nowhere-v0'"),
        ({**EMPTY, "options": {"colour": 1}}, "with these options"),
        ({**EMPTY, "actions": ["jump"]}, "environment.args.actions has 'jump'"),
        ({**EMPTY, "actions": 5}, "must be a list of words"),
        ({**EMPTY, "options": "max_steps"}, "must be a mapping of options by name"),
        ({**EMPTY, "view": "above"}, "environment.args.view='above' must be one of whole, agent"),
        ({**EMPTY, "tile": "large"}, "environment.args.tile='large' must be a whole number from 1 to 256"),
        ({**EMPTY, "tile": 0}, "environment.args.tile=0 must be"),
        ({"id": "FrozenLake-v1"}, "environment.args.id='FrozenLake-v1' is no world of minigrid"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(args: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvironmentLoadError, match=message):
        opened(args)
