"""All tools of an agent in one process: loaded once, MCP servers included, and opened for each trajectory.

Nobody closes a toolbox: its connections to MCP servers, and the commands behind them, end with the event loop.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

from stream_rl.envs.base import ResumeClass
from stream_rl.errors import ConfigError
from stream_rl.tools.mcp import McpServer
from stream_rl.tools.settings import ToolAgentSettings
from stream_rl.tools.tool import Tool, load_tool

__all__ = ["Toolbox", "load_toolbox"]


class Toolbox:
    """The tools of the settings. Raises ConfigError for one that cannot be used."""

    def __init__(self, settings: ToolAgentSettings) -> None:
        self.settings = settings
        self._own = [load_tool(one) for one in settings.tools if one.mcp is None]
        self._servers = [McpServer(one.mcp) for one in settings.tools if one.mcp is not None]
        self._tools: Mapping[str, Tool] | None = None
        self._listing = asyncio.Lock()

    @property
    def resume(self) -> ResumeClass:
        """How a trajectory with these tools comes back: by one way that suits all tools with a state, or not at all."""
        ways = {tool.resume for tool in self._own if tool.resume is not None}
        if any(server.resume is not None for server in self._servers):
            ways.add(ResumeClass.RESTART)
        if len(ways) > 1:
            return ResumeClass.RESTART
        return ways.pop() if ways else ResumeClass.REPLAY

    async def tools(self) -> Mapping[str, Tool]:
        """All tools by name; MCP servers are asked for theirs the first time.

        Raises:
            ConfigError: two tools have one name, or an MCP server cannot be used.
            EnvInfraError: an MCP server does not answer.
        """
        async with self._listing:
            if self._tools is None:
                listed = list(self._own)
                for server in self._servers:
                    listed += await server.tools()
                self._tools = {tool.name: tool for tool in listed}
                if len(self._tools) < len(listed):
                    names = [tool.name for tool in listed]
                    twice = next(name for name in names if names.count(name) > 1)
                    raise ConfigError(f"two tools are called {twice!r}: a class may set another `name`")
            return self._tools


def load_toolbox(tree: Mapping[str, Any] | None, where: str) -> Toolbox:
    """The process's tools for plain settings that stand at `where`. Raises ConfigError."""
    return _toolbox(ToolAgentSettings.within(where, dict(tree or {})).model_dump_json())


@functools.lru_cache(maxsize=32)
def _toolbox(settings: str) -> Toolbox:
    return Toolbox(ToolAgentSettings.model_validate_json(settings))
