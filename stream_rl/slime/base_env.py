"""The base class that slime's multi-turn example gives its environments."""

from __future__ import annotations

from typing import Any

from stream_rl.envs.base import format_observation

__all__ = ["BaseInteractionEnv"]


class BaseInteractionEnv:
    """An environment of one episode: `reset`, `step`, `close`. After a death it begins anew."""

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(observation, info) of the start."""
        raise NotImplementedError

    def step(self, response_text: str) -> tuple[dict[str, Any], bool, dict[str, Any]]:
        """(observation, done, info) of an action."""
        raise NotImplementedError

    def close(self) -> None:
        """Frees what the environment holds."""

    def format_observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The chat message that shows an observation."""
        return dict(format_observation(observation or {}))
