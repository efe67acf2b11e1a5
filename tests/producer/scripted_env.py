"""An environment with a script, for the three ways of coming back. `WORLD` is what outlives its instances."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from stream_rl.envs.base import BaseInteractionEnv
from stream_rl.errors import ActionError, EnvFatalError, EnvInfraError

WORDS = ("higher", "lower", "correct", "invalid")


class World:
    """What all instances share: faults still to come, by call ("reset", "step", "build"), and what was called."""

    faults: ClassVar[dict[str, list[Any]]] = {}
    calls: ClassVar[list[str]] = []
    built: ClassVar[int] = 0
    noise: ClassVar[bool] = False

    @classmethod
    def clear(cls) -> None:
        cls.faults, cls.calls, cls.built, cls.noise = {}, [], 0, False

    @classmethod
    def call(cls, name: str) -> None:
        cls.calls.append(name)
        fault = (cls.faults.get(name) or [None]).pop(0)
        if isinstance(fault, float):
            time.sleep(fault)
        elif fault is not None:
            raise fault


class Plain(BaseInteractionEnv):
    """Its observation says how many steps it has seen; each step earns 0.25."""

    def __init__(self) -> None:
        World.call("build")
        World.built += 1
        self.steps = 0

    def reset(self):
        World.call("reset")
        self.steps = 0
        return {"obs_str": "0"}, {}

    def step(self, response_text: str):
        World.call(f"step {response_text}")
        World.call("step")
        self.steps += 1
        shown = self.steps + 8 * (World.noise and World.built > 1)
        return {"obs_str": str(shown)}, False, {"reward": 0.25}

    def close(self) -> None:
        World.call("close")


class Replayed(Plain):
    deterministic = True


class Snapshot(Plain):
    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        World.call("load")
        self.steps = state["steps"]


KINDS = {"restart": Plain, "replay": Replayed, "snapshot": Snapshot}


def build_env(sample: Any = None, args: Any = None, **_: Any) -> Plain:
    return KINDS[args.kind]()


def prompt(seed: int, index: int, args: Any = None) -> dict[str, Any]:
    return {"prompt": "guess", "label": index}


async def reward(args: Any, sample: Any) -> float:
    """A reward function: the number of turns."""
    World.call("reward")
    return float(len(sample.turns))


__all__ = ["ActionError", "EnvFatalError", "EnvInfraError", "World", "build_env", "prompt", "reward"]
