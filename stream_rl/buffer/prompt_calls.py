"""What a run's prompt numbers rest on, written down once: a run that goes on must find the same prompts under them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from stream_rl.buffer.connection import Connection
from stream_rl.errors import ConfigError

__all__ = ["PromptCalls"]


class PromptCalls:
    """The prompts' side of TrajectoryBuffer. All of these raise BufferUnavailable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def settle_prompts(self, basis: Mapping[str, Any]) -> None:
        """Keeps `basis` (setting -> JSON value) for the run. Raises ConfigError when it was begun with another."""
        key, text = self._connection.key("prompts"), orjson.dumps(basis)
        await self._connection.pipeline(lambda pipe: pipe.setnx(key, text))
        await self.check_prompts(basis)

    async def check_prompts(self, basis: Mapping[str, Any]) -> None:
        """Raises ConfigError when the run was begun with another basis; its message names the first setting."""
        key = self._connection.key("prompts")
        (kept,) = await self._connection.pipeline(lambda pipe: pipe.get(key))
        begun = orjson.loads(kept) if kept else {}
        for setting, value in basis.items():
            if setting in begun and begun[setting] != value:
                raise ConfigError(
                    f"{setting}: this run was begun with {begun[setting]}, not {value}: set it back, or start a new "
                    "run in another folder"
                )
