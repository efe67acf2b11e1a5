"""Every generator that reasoning-gym registers makes a task, the same in every process, and scores answers to it."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stream_rl.envs.base import EnvSample
from stream_rl.envs.reasoning_gym import _HASHED, ReasoningGym, build_env, prompt
from stream_rl.errors import ActionError, EnvironmentLoadError

reasoning_gym = pytest.importorskip("reasoning_gym")

NAMES = sorted(reasoning_gym.factory.DATASETS)
CONFIGS: dict[str, dict[str, Any]] = {
    "acre": {"size": 20},
    "composite": {
        "datasets": [
            {"name": "chain_sum", "weight": 1, "config": {}},
            {"name": "leg_counting", "weight": 1, "config": {}},
        ]
    },
}
"""Settings without which a generator makes nothing, or takes seconds."""
NO_ANSWER = {
    "boxnet": "plans are scored by what they do",
    "graph_color": "any proper colouring is right",
    "propositional_logic": "any conclusion that follows is right",
    "rubiks_cube": "any moves that solve it are right",
    "rush_hour": "any moves that solve it are right",
}
"""Generators whose tasks have several right answers, and hold none of them."""
WRONG = {"prime_factorization": "2 × 2"}
"""Wrong answers where the usual one cannot be read."""
ALL_RIGHT = {"game_of_life_halting": "its scorer takes every text for right"}
"""Generators that cannot teach anything."""


def opened(name: str) -> ReasoningGym:
    args = SimpleNamespace(dataset=name, config=CONFIGS.get(name, {}))
    made = prompt(0, 5, args)
    assert made["prompt"].strip()
    assert prompt(0, 5, args) == made
    env = build_env(EnvSample(made["prompt"], made["label"]), **vars(args))
    assert env.reset() == ({}, {})
    return env


@pytest.fixture(autouse=True)
def _fixed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_ANSWER])
def test_a_right_answer_solves_a_task_and_a_wrong_one_does_not(name: str) -> None:
    right = opened(name)
    _, done, info = right.step(f"<answer>{right._item['answer']}</answer>")
    assert (done, info["reward"]) == (True, pytest.approx(1.0))
    wrong = opened(name)
    _, done, info = wrong.step(WRONG.get(name, "certainly wrong"))
    assert done == (name in ALL_RIGHT)
    assert done or 0.0 <= info["reward"] <= 0.5


@pytest.mark.parametrize("name", NO_ANSWER)
def test_where_a_task_holds_no_answer_a_wrong_one_does_not_solve_it(name: str) -> None:
    env = opened(name)
    assert env._item["answer"] is None
    _, done, info = env.step("certainly wrong")
    assert not done
    assert 0.0 <= info["reward"] <= 0.1


def test_an_answer_that_a_scorer_cannot_read_is_the_models_mistake() -> None:
    with pytest.raises(ActionError, match="cannot be read"):
        opened("prime_factorization").step("certainly wrong")


TASKS = """
import sys, zlib
from stream_rl.envs import reasoning_gym
reasoning_gym._check_order = lambda _: None
for name in sys.argv[1:]:
    config = b'{"size": 20}' if name == "acre" else b"{}"
    for index in range(8):
        item = reasoning_gym._item(name, reasoning_gym._dataset(name, config, 0), index)
        print(name, zlib.crc32(repr((item["question"], item["answer"])).encode()))
"""


def tasks_with_sets_in_order(seed: int) -> list[str]:
    """Eight tasks of each generator, as a process with this order of sets makes them."""
    command = [sys.executable, "-c", TASKS, *(name for name in NAMES if name != "composite")]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.splitlines()


def test_a_generator_makes_the_same_tasks_in_every_process_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (tasks_with_sets_in_order(seed) for seed in (1, 2))
    assert len(one) == len(other) == 8 * (len(NAMES) - 1)
    assert {line.split()[0] for line, twin in zip(one, other, strict=True) if line != twin} <= _HASHED

    monkeypatch.delenv("PYTHONHASHSEED")
    parts = {"datasets": [{"name": "knight_swap", "weight": 1, "config": {}}]}
    for args in ({"dataset": "knight_swap"}, {"dataset": "composite", "config": parts}):
        with pytest.raises(EnvironmentLoadError, match=r"'knight_swap' makes other tasks in .* PYTHONHASHSEED=0"):
            prompt(0, 0, SimpleNamespace(**args))
