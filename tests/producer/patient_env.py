"""An environment that never ends an episode: its answers alternate, and its state is how often it answered."""

from __future__ import annotations

from typing import Any

from stream_rl.envs.base import BaseInteractionEnv

ANSWERS = ("higher", "lower")


class Patient(BaseInteractionEnv):
    def __init__(self) -> None:
        self.steps = 0

    def reset(self):
        return {}, {}

    def step(self, response_text: str):
        self.steps += 1
        return {"obs_str": ANSWERS[self.steps % 2]}, False, {"reward": 0.01}

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def build_env(**_: Any) -> Patient:
    return Patient()


def prompt(seed: int, index: int, args: Any = None) -> dict[str, Any]:
    return {"prompt": "guess"}
