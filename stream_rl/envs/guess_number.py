"""Find a number from 1 to 8 by guessing; each guess is answered "higher" or "lower".

Reward over an episode: 1 when the number was found, else 0.1 times the share of well-formed guesses. A step's
`info["reward"]` is what it changes of that total, so that the sum over the turns is the total at every turn.
Halving the interval always finds the number in 4 guesses; a policy that ignores the answers finds it in at most half
of the episodes, which `blank_observations` shows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.envs.labels import whole_number
from stream_rl.errors import ActionError

__all__ = ["GuessNumber", "build_env", "prompt"]

LOWEST, HIGHEST = 1, 8
FORMAT_REWARD = 0.1
INVALID = "invalid"


def prompt(seed: int, index: int, _args: Any = None) -> dict[str, Any]:
    """The prompt with this index: always the word "guess"; the label is the number to find."""
    return {"prompt": "guess", "label": random.Random(f"guess_number {seed} {index}").randint(LOWEST, HIGHEST)}


def build_env(sample: Any = None, args: Any = None, *, blank_observations: bool = False, **_: Any) -> GuessNumber:
    """An episode whose number is `sample.label`. `blank_observations` answers every guess with one word.

    Raises DataError for another label.
    """
    target = whole_number(sample.label, "guess_number", LOWEST, HIGHEST)
    return GuessNumber(target, blank=bool(blank_observations))


class GuessNumber(BaseInteractionEnv):
    """One episode. Async because a step takes microseconds: a thread would cost more than it."""

    def __init__(self, target: int, *, blank: bool = False) -> None:
        self._target = target
        self._blank = blank
        self._guesses = 0
        self._well_formed = 0
        self._total = 0.0

    async def reset(self) -> tuple[Observation, Info]:
        """The prompt says it all: the first observation is empty."""
        self._guesses = self._well_formed = 0
        self._total = 0.0
        return {}, {}

    async def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Compares a guess with the number."""
        guess = _parse(response_text)
        self._guesses += 1
        if guess is None:
            raise ActionError(INVALID, reward=self._reward(found=False))
        self._well_formed += 1
        found = guess == self._target
        answer = "higher" if guess < self._target else "lower"
        return {"obs_str": INVALID if self._blank else answer}, found, {"reward": self._reward(found)}

    async def cut(self, response_text: str) -> Info:
        """A response without its end is no well-formed guess."""
        self._guesses += 1
        return {"reward": self._reward(found=False)}

    def state_dict(self) -> dict[str, Any]:
        """Everything but the number, which is the sample's label."""
        return {"guesses": self._guesses, "well_formed": self._well_formed, "total": self._total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._guesses, self._well_formed = int(state["guesses"]), int(state["well_formed"])
        self._total = float(state["total"])

    def _reward(self, found: bool) -> float:
        total = 1.0 if found else FORMAT_REWARD * self._well_formed / self._guesses
        change, self._total = total - self._total, total
        return change


def _parse(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and LOWEST <= int(text) <= HIGHEST else None
