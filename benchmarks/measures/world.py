"""An environment that answers every action with one word, at once, for as long as it is asked."""

from __future__ import annotations

from typing import Any

from stream_rl.envs.base import BaseInteractionEnv, Info, Observation


def build_env(**_: Any) -> Answers:
    """One episode."""
    return Answers()


def prompt(_seed: int, _index: int, args: Any) -> dict[str, Any]:
    """As many words as `environment.args` asks for."""
    return {"prompt": " ".join(["guess"] * args.words)}


class Answers(BaseInteractionEnv):
    """Says "higher"."""

    deterministic = True

    async def reset(self) -> tuple[Observation, Info]:
        """Nothing before the first action."""
        return {}, {}

    async def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Each action earns the same."""
        return {"obs_str": "higher"}, False, {"reward": 0.05}
