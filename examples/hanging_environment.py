"""Guess a number in a world that hangs now and then: for examples/hanging_environment.yaml.

Found with the first guess it gives 1, with each later one 0.1 less.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.envs.guess_number import prompt
from stream_rl.errors import ActionError

__all__ = ["Hanging", "build_env", "prompt"]

FOR_EVER = 1e6
CALLS = itertools.count(1)
"""Of this process."""


def build_env(sample: Any = None, args: Any = None, *, every: int = 100, **_: Any) -> Hanging:
    """An episode of a world of whose calls one in `every` hangs."""
    return Hanging(int(sample.label), every)


class Hanging(BaseInteractionEnv):
    """One episode. Its `step` is no coroutine, so it runs in a thread: one that hangs may block it."""

    def __init__(self, number: int, every: int) -> None:
        self._number = number
        self._every = every
        self._guesses = 0

    def reset(self) -> tuple[Observation, Info]:
        """The prompt says it all."""
        return {}, {}

    def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Compares a guess with the number, if the world answers at all."""
        if next(CALLS) % self._every == 0:
            time.sleep(FOR_EVER)
        if not response_text.isdigit():
            raise ActionError("invalid")
        self._guesses += 1
        guess = int(response_text)
        reward = max(1.1 - 0.1 * self._guesses, 0.1) if guess == self._number else 0.0
        return {"obs_str": "higher" if guess < self._number else "lower"}, reward > 0.0, {"reward": reward}

    def state_dict(self) -> dict[str, Any]:
        """By this it comes back after a call that hung: on a new instance, in another thread."""
        return {"guesses": self._guesses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._guesses = int(state["guesses"])
