"""An environment whose observations have the role `tool`; `args.first` is the first of them, none where it is empty."""

from __future__ import annotations

from typing import Any

from stream_rl.envs.base import BaseInteractionEnv


class ToolRoleEnv(BaseInteractionEnv):
    def __init__(self, first: str) -> None:
        self.first = first

    def reset(self):
        return {"obs_str": self.first, "role": "tool"}, {}

    def step(self, response_text: str):
        return {"obs_str": "higher", "role": "tool"}, False, {}


def build_env(args: Any = None, **_: Any) -> ToolRoleEnv:
    return ToolRoleEnv(args.first)


def prompt(seed: int, index: int, args: Any = None) -> dict[str, Any]:
    return {"prompt": "guess"}
