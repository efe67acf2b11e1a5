"""GuessTheNumber of textarena, as an environment."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from stream_rl.envs.base import EnvSample, ResumeClass, resume_class
from stream_rl.envs.loading import load_environment
from stream_rl.errors import EnvironmentLoadError

pytest.importorskip("textarena")

ARGS = {"id": "GuessTheNumber-v0", "options": {"max_number": 8, "max_turns": 4}}


def row(index: int, args: dict[str, Any] = ARGS) -> dict[str, Any]:
    module = load_environment("textarena")
    assert module.prompt is not None
    return dict(module.prompt(0, index, SimpleNamespace(**args)))


def opened(index: int, args: dict[str, Any] = ARGS) -> Any:
    module, given = load_environment("textarena"), SimpleNamespace(**args)
    made = row(index, args)
    env = module.build_env(sample=EnvSample(made["prompt"], made["label"]), args=given, **module.named(given))
    assert env.reset() == ({}, {})
    return env


def played(index: int) -> tuple[list[Any], float]:
    """An episode by halving: what was seen, and the reward."""
    env, low, high, seen = opened(index), 1, 8, []
    while True:
        guess = (low + high) // 2
        observation, done, info = env.step(f"I say [{guess}]")
        seen.append(observation)
        if done:
            return seen, info["reward"]
        low, high = (guess + 1, high) if "higher" in observation["obs_str"] else (low, guess - 1)


def test_the_prompt_is_the_games_own() -> None:
    assert "guess the number between 1 and 8 within 4 turns" in row(0)["prompt"]


def test_halving_finds_the_number_and_earns_the_games_reward() -> None:
    for index in range(4):
        seen, reward = played(index)
        assert reward == 1.0
        assert all(set(observation) <= {"obs_str"} for observation in seen)


def test_only_what_is_new_is_shown() -> None:
    said = [opened(index).step("[1]")[0].get("obs_str") for index in range(8)]
    assert set(said) <= {"The target number is higher.", None}
    assert "The target number is higher." in said


def test_what_it_cannot_read_it_says_once_then_ends() -> None:
    env = opened(0)
    observation, done, _ = env.step("five")
    assert ("Invalid move format" in observation["obs_str"], done) == (True, False)
    _, done, info = env.step("five")
    assert (done, info["reward"]) == (True, 0.0)


def test_an_episode_is_played_again_to_the_letter_beside_others_and_leaves_python_its_random() -> None:
    assert resume_class(opened(0)) is ResumeClass.REPLAY
    expected = [played(index) for index in range(8)]
    random.seed(5)
    following = random.random()
    random.seed(5)
    found: list[Any] = [None] * 8
    threads = [threading.Thread(target=lambda at=at: found.__setitem__(at, played(at))) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
    assert random.random() == following


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "environment.args.id is missing"),
        ({"id": "GuessTheNumbers"}, "environment.args.id='GuessTheNumbers'"),
        ({**ARGS, "options": {"colour": 1}}, "with these options"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(args: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvironmentLoadError, match=message):
        row(0, args)
