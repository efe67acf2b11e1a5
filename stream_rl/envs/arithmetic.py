"""One-digit addition in plain words, answered in one turn and read leniently: a task that a small chat model can start.

Reward 1 when the last whole number in the response is the sum, else 0.
"""

from __future__ import annotations

import random
import re
from typing import Any

from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.envs.labels import whole_number

__all__ = ["Arithmetic", "build_env", "prompt"]


def prompt(seed: int, index: int, _args: Any = None) -> dict[str, Any]:
    """The question with this index; the label is the sum."""
    numbers = random.Random(f"arithmetic {seed} {index}")
    left, right = numbers.randint(0, 9), numbers.randint(0, 9)
    return {"prompt": f"What is {left} + {right}?", "label": left + right}


def build_env(sample: Any = None, args: Any = None, **_: Any) -> Arithmetic:
    """An episode whose right answer is `sample.label`. Raises DataError for one that no answer can be."""
    return Arithmetic(whole_number(sample.label, "arithmetic", 0))


class Arithmetic(BaseInteractionEnv):
    """One question. Async because a step takes microseconds: a thread would cost more than it."""

    deterministic = True

    def __init__(self, answer: int) -> None:
        self._answer = answer

    async def reset(self) -> tuple[Observation, Info]:
        """The question is the prompt."""
        return {}, {}

    async def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Scores the answer; the episode is over."""
        return {}, True, {"reward": self._score(response_text)}

    async def cut(self, response_text: str) -> Info:
        """An answer that was given before the cut counts."""
        return {"reward": self._score(response_text)}

    def _score(self, text: str) -> float:
        numbers = re.findall(r"\d+", text)
        return float(bool(numbers) and int(numbers[-1]) == self._answer)
