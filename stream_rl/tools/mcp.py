"""Tools of an MCP server, over its standard input and output or over HTTP, by the official SDK.

The SDK wants a connection to be opened and closed by one task. So each connection is owned by a task of its own, and
all others send their calls through it at the same time. A connection that breaks fails the calls that are under way, as
the world's fault, and the next call opens another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stream_rl.envs.base import ResumeClass
from stream_rl.errors import ActionError, ConfigError, EnvInfraError
from stream_rl.tools.settings import McpSettings
from stream_rl.tools.tool import Tool, ToolResult, make_tool

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

__all__ = ["McpServer"]

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
THE_MODELS_FAULT = (-32602,)
"""Error codes of the protocol: invalid parameters."""
BROKEN = (-32000, -32600)
"""The connection was closed, or the server does not know the session any more."""


class McpServer:
    """A connection to one MCP server, opened by the first call. `close` it, in the loop in which it was used."""

    def __init__(self, settings: McpSettings) -> None:
        self._settings = settings
        self._opening = asyncio.Lock()
        self._owner: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._enough = asyncio.Event()

    @property
    def resume(self) -> ResumeClass | None:
        """How its tools come back: a server of one's own knows nothing of an earlier trajectory."""
        return ResumeClass.RESTART if self._settings.scope == "trajectory" else None

    async def tools(self) -> list[Tool]:
        """What the server offers, as far as the settings want it. Listing needs a connection, which stays open.

        Raises:
            ConfigError: the SDK is not installed, the command does not exist, or the server has no such tool.
            EnvInfraError: the server does not answer.
        """
        listed = await self._asked("tools/list", lambda client: client.list_tools(), self._settings.start_timeout)
        there = {tool.name: tool for tool in listed.tools}
        wanted = list(there) if self._settings.tools is None else self._settings.tools
        if missing := [name for name in wanted if name not in there]:
            raise ConfigError(f"the MCP server {self._name} has no tool {missing[0]!r}; it has {', '.join(there)}")
        return [
            make_tool(
                name,
                there[name].description or "",
                there[name].input_schema,
                self._opener(name),
                self.resume,
            )
            for name in wanted
        ]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The text of a tool's result, which may be an error's: whose fault that is, the protocol does not say.

        Raises:
            ActionError: the server says that the arguments are wrong.
            EnvInfraError: the server or the way to it failed.
        """
        result: CallToolResult = await self._asked(name, lambda client: client.call_tool(name, dict(arguments)))
        return ToolResult(_text(result), failed=result.is_error)

    async def close(self) -> None:
        """Ends the connection, and the command with it."""
        owner, self._owner, self._client = self._owner, None, None
        if owner is None:
            return
        self._enough.set()
        _, late = await asyncio.wait([owner], timeout=CLOSE_SECONDS)
        if late:
            owner.cancel()

    @property
    def _name(self) -> str:
        return self._settings.url or " ".join(self._settings.command or ())

    def _opener(self, name: str) -> Any:
        """Of a tool: one connection for all trajectories, or a new one for each."""
        if self._settings.scope == "process":
            return lambda _sample: _McpTool(self, name)
        return lambda _sample: _McpTool(McpServer(self._settings), name, own=True)

    async def _asked(self, what: str, ask: Any, seconds: float | None = None) -> Any:
        client = await self._connected()
        from mcp import MCPError  # noqa: PLC0415 - an extra: only who names a server needs it

        try:
            async with asyncio.timeout(seconds):
                return await ask(client)
        except MCPError as error:
            if error.code in THE_MODELS_FAULT:
                raise ActionError(str(error)) from error
            if error.code in BROKEN:
                await self._drop(client)
            raise EnvInfraError(f"MCP server {self._name}: {what}: {error}") from error
        except TimeoutError as error:
            await self._drop(client)
            raise EnvInfraError(f"MCP server {self._name}: {what}: no answer", cause="timeout") from error
        except Exception as error:  # of the transport below, which raises what its libraries do
            await self._drop(client)
            raise EnvInfraError(f"MCP server {self._name}: {what}: {type(error).__name__}: {error}") from error

    async def _connected(self) -> Client:
        async with self._opening:
            if self._client is None or self._owner is None or self._owner.done():
                self._client = None
                loop = asyncio.get_running_loop()
                opened: asyncio.Future[Client] = loop.create_future()
                self._enough = asyncio.Event()
                self._owner = loop.create_task(self._own(opened, self._enough))
                try:
                    async with asyncio.timeout(self._settings.start_timeout):
                        self._client = await opened
                except TimeoutError as error:
                    raise EnvInfraError(f"MCP server {self._name}: no connection", cause="timeout") from error
                finally:
                    if self._client is None:
                        self._owner.cancel()
            return self._client

    async def _drop(self, client: Client) -> None:
        if client is self._client:
            await self.close()

    async def _own(self, opened: asyncio.Future[Client], enough: asyncio.Event) -> None:
        """Holds the connection until it is enough. What goes wrong while opening goes to who waits for that."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                client = await stack.enter_async_context(await self._transport(stack))
                if not opened.done():
                    opened.set_result(client)
                await enough.wait()
        except ConfigError as error:
            self._failed(opened, error)
        except (FileNotFoundError, PermissionError, ImportError) as error:
            self._failed(opened, ConfigError(f"MCP server {self._name}: {error}"))
        except Exception as error:  # groups of whatever the transport's tasks raise
            self._failed(opened, EnvInfraError(f"MCP server {self._name}: {_innermost(error)}"))

    def _failed(self, opened: asyncio.Future[Client], error: Exception) -> None:
        if opened.done():
            logger.warning("%s", error)
        else:
            opened.set_exception(error)

    async def _transport(self, stack: contextlib.AsyncExitStack) -> Client:
        try:
            import httpx2  # noqa: PLC0415 - as above
            from mcp import Client, StdioServerParameters  # noqa: PLC0415 - as above
            from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 - as above
        except ImportError as error:
            raise ImportError("tools of MCP servers need `pip install 'stream_rl[mcp]'`") from error
        settings = self._settings
        if settings.command is not None:
            program, *arguments = settings.command
            program = sys.executable if program == "python" else program  # PATH may have none, or another
            passed = {name: _variable(name) for name in settings.pass_env}
            return Client(StdioServerParameters(command=program, args=arguments, env=passed))
        assert settings.url is not None
        headers = {"Authorization": f"Bearer {_variable(settings.token_env)}"} if settings.token_env else {}
        timeout = httpx2.Timeout(settings.start_timeout, read=None)  # calls have deadlines of their own
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
        return Client(streamable_http_client(settings.url, http_client=http))


class _McpTool:
    """One tool of a connection. With `own` the connection is this trajectory's alone."""

    def __init__(self, server: McpServer, name: str, *, own: bool = False) -> None:
        self._server = server
        self._name = name
        self._own = own

    async def call(self, **arguments: Any) -> ToolResult:
        return await self._server.call(self._name, arguments)

    async def release(self) -> None:
        if self._own:
            await self._server.close()


def _variable(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise ConfigError(f"environment variable {name} is not set, and an MCP server's settings name it") from None


def _text(result: CallToolResult) -> str:
    """The texts of a result; what is no text is named."""
    return "\n".join(getattr(block, "text", f"[{block.type} left out]") for block in result.content)


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
