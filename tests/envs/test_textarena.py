"""GuessTheNumber of textarena, as an environment."""

from __future__ import annotations

import itertools
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from stream_rl.envs.base import EnvSample, ResumeClass, resume_class
from stream_rl.envs.loading import load_environment
from stream_rl.errors import EnvironmentLoadError

pytest.importorskip("textarena")
from textarena.envs.GuessTheNumber.env import GuessTheNumberEnv
from textarena.envs.registration import ENV_REGISTRY, EnvSpec

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


def test_a_game_draws_from_its_own_dice_whatever_others_draw_meanwhile() -> None:
    before, expected = random.getstate(), played(3)
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            random.random()

    others = threading.Thread(target=draw)
    others.start()
    try:
        assert all(played(3) == expected for _ in range(20))
    finally:
        stop.set()
        others.join()
    random.setstate(before)
    played(3)
    assert random.getstate() == before


def test_a_game_that_writes_the_players_words_down_in_a_way_of_its_own_is_played_too() -> None:
    made = row(0, {"id": "Countdown-v0"})
    env = load_environment("textarena").build_env(sample=EnvSample(made["prompt"], made["label"]), id="Countdown-v0")
    env.reset()
    observation, done, _ = env.step("[1 + 2]")
    assert not done
    assert observation["obs_str"]


class Drifting(GuessTheNumberEnv):
    """A game that draws from something else than `random`."""

    started = itertools.count()

    def _prompt(self, player_id: int, game_state: dict[int, Any]) -> str:
        return f"Guess. {next(self.started)}"


ENV_REGISTRY["Drifting-v0-raw"] = EnvSpec("Drifting-v0-raw", f"{__name__}:Drifting", None)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "environment.args.id is missing"),
        ({"id": "GuessTheNumbr-v0"}, "is no game of textarena: did you mean 'GuessTheNumber-v0'"),
        ({"id": 7}, "environment.args.id=7 is no game of textarena"),
        ({**ARGS, "options": {"colour": 1}}, "with these options: TypeError"),
        ({**ARGS, "options": {"max_number": "eight"}}, "does not start for one player"),
        ({**ARGS, "options": 8}, "must be a mapping of options by name"),
        ({"id": "TicTacToe-v0"}, "environment.args.id='TicTacToe-v0' does not start for one player"),
        ({"id": "Drifting-v0"}, "starts in different ways from one seed"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(args: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvironmentLoadError, match=message):
        row(0, args)
