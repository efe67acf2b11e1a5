"""The guessing game in a world that breaks: errors, hangs and deaths by a schedule, before an action and after it."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any, ClassVar

from stream_rl.envs.base import BaseInteractionEnv
from stream_rl.errors import EnvFatalError, EnvInfraError

INFRA, HANG, FATAL = 0.05, 0.02, 0.01
"""Share of steps with an infrastructure error, of steps that hang, and of episodes that cannot go on."""
TURNS_PER_EPISODE = 2.6


class Faults:
    """The schedule, shared by all episodes; `met` counts what happened."""

    chance: ClassVar[random.Random] = random.Random()
    met: ClassVar[Counter[str]] = Counter()
    release: ClassVar[threading.Event] = threading.Event()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def begin(cls, seed: int) -> None:
        cls.chance, cls.met, cls.release = random.Random(seed), Counter(), threading.Event()

    @classmethod
    def strike(cls) -> None:
        """Does to one call what its number says."""
        with cls._lock:
            number = cls.chance.random()
            kind = "infra" if number < INFRA else "hang" if number < INFRA + HANG else ""
            kind = kind or ("fatal" if number > 1 - FATAL / TURNS_PER_EPISODE else "")
            cls.met[kind] += 1
        if kind == "infra":
            raise EnvInfraError("connection reset")
        if kind == "fatal":
            raise EnvFatalError("the task is broken")
        if kind == "hang":
            cls.release.wait(60)


def build_env(sample: Any = None, args: Any = None, **_: Any) -> Game:
    return Game(sample.label)


def prompt(seed: int, index: int, args: Any = None) -> dict[str, Any]:
    return {"prompt": "guess", "label": 1 + index % 8}


class Game(BaseInteractionEnv):
    """A number may be guessed only once: an action that is applied twice loses the game."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._guessed: list[int] = []

    def reset(self):
        return {}, {}

    def step(self, response_text: str):
        late = len(self._guessed) % 2
        if not late:
            Faults.strike()
        guess = int(response_text)
        if guess in self._guessed:
            return {"obs_str": "invalid"}, True, {"reward": 0.0}
        self._guessed.append(guess)
        if late:
            Faults.strike()
        answer = "higher" if guess < self._number else "lower"
        found = guess == self._number
        return {"obs_str": answer}, found, {"reward": float(found)}

    def state_dict(self):
        return {"guessed": self._guessed}

    def load_state_dict(self, state):
        self._guessed = list(state["guessed"])
