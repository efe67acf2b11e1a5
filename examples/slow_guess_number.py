"""guess_number with a world that takes its time: every answer comes after `seconds`, as a tool's or a browser's may.

stream-rl train examples/guess_number.yaml environment.path=examples/slow_guess_number.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from stream_rl.envs import guess_number
from stream_rl.envs.base import Info, Observation
from stream_rl.envs.guess_number import prompt

__all__ = ["SlowGuessNumber", "build_env", "prompt"]


def build_env(sample: Any = None, args: Any = None, *, seconds: float = 0.3, **_: Any) -> SlowGuessNumber:
    """An episode of the game whose every step takes so long."""
    return SlowGuessNumber(int(sample.label), float(seconds))


class SlowGuessNumber(guess_number.GuessNumber):
    """One episode."""

    def __init__(self, target: int, seconds: float) -> None:
        super().__init__(target)
        self._seconds = seconds

    async def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """As the game's, later."""
        await asyncio.sleep(self._seconds)
        return await super().step(response_text)
