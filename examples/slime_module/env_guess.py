"""An environment as one writes it for slime's multi-turn example, unchanged: guess a number from the file's label."""

from __future__ import annotations

from typing import Any

from examples.geo3k_vlm_multi_turn.base_env import BaseInteractionEnv
from slime.utils.types import Sample


class GuessEnv(BaseInteractionEnv):
    """Answers a guess by "higher" or "lower"."""

    def __init__(self, *, number: int, highest: int, max_turns: int) -> None:
        self.number = number
        self.highest = highest
        self.max_turns = max_turns
        self.turn = 0

    def reset(self):
        self.turn = 0
        return {}, {"number_known": True}

    def step(self, response_text: str):
        self.turn += 1
        last = self.turn >= self.max_turns
        guess = response_text.strip()
        if not guess.isdigit() or int(guess) > self.highest:
            return {"obs_str": "invalid", "role": "user"}, last, {"parsed": False}
        found = int(guess) == self.number
        answer = "higher" if int(guess) < self.number else "lower"
        return {"obs_str": answer, "role": "user"}, found or last, {"parsed": True, "found": found}


def build_env(sample: Sample | None = None, args: Any | None = None, **_: Any) -> GuessEnv:
    """The number is the row's label; `highest` comes from the custom-config file."""
    return GuessEnv(number=int(sample.label), highest=args.highest, max_turns=args.max_turns)
