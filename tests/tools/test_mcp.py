"""Real MCP servers, over standard input and output and over HTTP: their tools, their failures, their deaths."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tool_fixtures import context, settings

from stream_rl.envs.tool_calls import ToolCall
from stream_rl.errors import ConfigError, EnvInfraError
from stream_rl.tools.session import ToolSession
from stream_rl.tools.toolbox import Toolbox

SERVER = str(Path(__file__).with_name("mcp_server.py"))
STDIO = {"command": [sys.executable, SERVER]}


@contextlib.asynccontextmanager
async def tools_of(mcp: dict[str, Any], **more: Any) -> AsyncIterator[ToolSession]:
    session = ToolSession(Toolbox(settings({"mcp": mcp}, **more)), context())
    try:
        await session.open()
        yield session
    finally:
        await session.release()


async def said(session: ToolSession, tool: str, **arguments: Any) -> str:
    (answer,) = await session.answer([ToolCall(tool, arguments)])
    return answer.text


def running_servers() -> list[bytes]:
    """Command lines of the stdio servers that this process has started and that still run."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    return [command for command in commands if command.endswith(b"mcp_server.py\0")]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The small server over HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port)], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


async def test_a_server_over_its_standard_input_and_output(monkeypatch):
    monkeypatch.setenv("SMALL_SECRET", "s3cret")
    monkeypatch.setenv("NOT_PASSED", "x")
    async with tools_of({**STDIO, "pass_env": ["SMALL_SECRET"]}) as session:
        (multiply,) = (s["function"] for s in session.schemas if s["function"]["name"] == "multiply")
        assert multiply["description"] == "Multiplies."
        assert multiply["parameters"]["required"] == ["a", "b"]
        assert await said(session, "multiply", a=6, b=7) == "42"
        assert await said(session, "secret") == "s3cret None"

        wrong, failed = await session.answer([ToolCall("multiply", {"a": "six"}), ToolCall("fail", {})])
        assert (wrong.outcome, wrong.mistaken) == ("mistake", True)
        assert (failed.outcome, failed.mistaken) == ("error", False)
        assert "no such file" in failed.text


async def test_a_server_over_http_answers_calls_at_the_same_time(url):
    async with tools_of({"url": url, "tools": ["wait", "multiply"]}) as session:
        assert [schema["function"]["name"] for schema in session.schemas] == ["wait", "multiply"]
        began = asyncio.get_running_loop().time()
        answers = await session.answer([ToolCall("wait", {"seconds": 0.3}) for _ in range(4)])
        assert [answer.text for answer in answers] == ["waited"] * 4
        assert asyncio.get_running_loop().time() - began < 1.0


async def test_a_call_that_takes_too_long_is_the_worlds_fault_and_the_connection_stays_usable(url):
    async with tools_of({"url": url}, tool_timeout=0.2) as session:
        with pytest.raises(EnvInfraError, match=r"tool wait: no result within 0\.2 seconds"):
            await said(session, "wait", seconds=20)
        assert await said(session, "multiply", a=2, b=2) == "4"


async def test_a_server_that_dies_fails_the_call_and_is_started_again():
    async with tools_of(STDIO) as session:
        assert await said(session, "count", by=2) == "2"
        with pytest.raises(EnvInfraError, match="MCP server"):
            await said(session, "die")
        assert await said(session, "count", by=5) == "5"


async def test_a_server_for_each_trajectory_keeps_their_states_apart_and_ends_with_them():
    toolbox = Toolbox(settings({"mcp": {**STDIO, "scope": "trajectory", "tools": ["count"]}}))
    first, second = ToolSession(toolbox, context()), ToolSession(toolbox, context())
    await first.open()
    await second.open()
    assert [await said(session, "count", by=3) for session in (first, first, second)] == ["3", "6", "3"]
    assert len(running_servers()) == 3
    await first.release()
    await second.release()
    assert len(running_servers()) == 1, "the one that was asked for its tools stays for the next trajectory"


def test_a_server_that_nobody_closes_ends_with_the_event_loop():
    async def play() -> None:
        async with tools_of(STDIO) as session:
            assert await said(session, "count", by=2) == "2"
        assert len(running_servers()) == 1

    asyncio.run(play())
    assert not running_servers()


@pytest.mark.parametrize(
    ("mcp", "error", "reason"),
    [
        ({"command": ["/no/such/program"]}, ConfigError, "No such file"),
        ({**STDIO, "pass_env": ["NO_SUCH_VARIABLE"]}, ConfigError, "NO_SUCH_VARIABLE is not set"),
        ({**STDIO, "tools": ["divide"]}, ConfigError, "has no tool 'divide'; it has multiply"),
        ({"command": [sys.executable, "-c", "pass"]}, EnvInfraError, "MCP server"),
        ({"command": ["sleep", "60"], "start_timeout": 0.3}, EnvInfraError, "no connection"),
        ({"url": "http://127.0.0.1:9/mcp"}, EnvInfraError, "MCP server http://127.0.0.1:9/mcp"),
    ],
)
async def test_a_server_that_cannot_be_used_is_named(mcp, error, reason):
    with pytest.raises(error, match=reason):
        async with tools_of(mcp):
            pass
