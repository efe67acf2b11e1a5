"""Toy-text games of gymnasium, played in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stream_rl.envs.base import EnvSample, ResumeClass, resume_class
from stream_rl.envs.gymnasium import plain
from stream_rl.envs.loading import load_environment
from stream_rl.errors import ActionError, EnvironmentLoadError

pytest.importorskip("gymnasium")

LAKE = {"id": "FrozenLake-v1", "options": {"is_slippery": False}}
SLIPPERY = {"id": "FrozenLake-v1"}
TO_THE_GOAL = ("down", "down", "right", "right", "down", "right")


def opened(args: dict[str, Any], index: int = 0) -> Any:
    """The episode of a prompt, and the prompt's text."""
    module, given = load_environment("gymnasium"), SimpleNamespace(**args)
    assert module.prompt is not None
    row = module.prompt(0, index, given)
    return module.build_env(sample=EnvSample(row["prompt"], row["label"]), args=given, **module.named(given))


def test_the_prompt_names_the_actions_and_its_label_is_the_episodes_seed() -> None:
    module = load_environment("gymnasium")
    assert module.prompt is not None
    row = module.prompt(0, 1, SimpleNamespace(**LAKE))
    assert "We play FrozenLake." in row["prompt"]
    assert "left, down, right, up" in row["prompt"]
    assert row == module.prompt(0, 1, SimpleNamespace(**LAKE))
    assert row["label"] != module.prompt(0, 2, SimpleNamespace(**LAKE))["label"]


def test_an_episode_is_shown_as_text_and_won() -> None:
    env = opened(LAKE)
    assert env.reset()[0]["obs_str"].splitlines() == ["[S]FFF", "FHFH", "FFFH", "HFFG"]
    seen, done, info = env.step(" Down.\n")
    assert seen["obs_str"].splitlines()[-4:] == ["SFFF", "[F]HFH", "FFFH", "HFFG"]
    assert (done, info["reward"]) == (False, 0.0)
    for action in TO_THE_GOAL[1:-1]:
        assert not env.step(action)[1]
    _, done, info = env.step(TO_THE_GOAL[-1])
    assert (done, info["reward"]) == (True, 1.0)
    env.close()


def test_what_is_no_action_is_the_models_mistake() -> None:
    env = opened(LAKE)
    env.reset()
    with pytest.raises(ActionError, match="Answer with one of: left, down, right, up"):
        env.step("jump")


def test_the_same_actions_lead_to_the_same_place_on_ice() -> None:
    played = []
    for _ in range(2):
        env = opened(SLIPPERY)
        assert resume_class(env) is ResumeClass.REPLAY
        played.append([env.reset()[0], *(env.step("up")[0] for _ in range(8))])
    assert played[0] == played[1]


@pytest.mark.parametrize("name", ["Blackjack-v1", "Taxi-v4", "CliffWalking-v1"])
def test_the_other_games_are_played_too(name: str) -> None:
    env = opened({"id": name})
    assert env.reset()[0]["obs_str"]
    assert env.step(env._actions[1])[0]["obs_str"]


def test_colours_become_brackets_of_three_kinds() -> None:
    assert plain("\x1b[43mR\x1b[0m: |\x1b[35mG\x1b[0m \x1b[34;1mY\x1b[0m\n") == "[R]: |<G> (Y)"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "environment.args.id is missing"),
        ({"id": "FrozenLake-v77"}, "environment.args.id='FrozenLake-v77' is no game of gymnasium"),
        ({"id": "FrozenLak-v1"}, "Did you mean: `FrozenLake`"),
        ({"id": 7}, "environment.args.id=7 is no game"),
        ({"id": "FrozenLake-v1", "options": {"colour": 1}}, "environment.args.options={'colour': 1} of FrozenLake-v1"),
        ({"id": "FrozenLake-v1", "options": {"map_name": "9x9"}}, "environment.args.options={'map_name': '9x9'}"),
        ({"id": "FrozenLake-v1", "options": ["slippery"]}, "must be a mapping of options by name"),
        ({"id": "CartPole-v1"}, "environment.args.actions is missing"),
        ({"id": "Pendulum-v1", "actions": ["on", "off"]}, "has no numbered actions that words could name"),
        ({**LAKE, "actions": [True, False]}, "must be a list of words; quote what YAML takes for something else"),
        ({**LAKE, "actions": "left"}, "must be a list of words"),
        ({**LAKE, "actions": ["left", "Left"]}, "has a word twice"),
        ({**LAKE, "actions": ["left", "right"]}, "has 2 words, and FrozenLake-v1 has 4 actions: give one for each"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(args: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvironmentLoadError, match=message):
        opened(args)
