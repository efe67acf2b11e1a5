"""A small MCP server, run as a program: over standard input and output, or over HTTP on a port that it is given."""

from __future__ import annotations

import asyncio
import os
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("small")
total = 0


@server.tool()
def multiply(a: int, b: int) -> int:
    """Multiplies."""
    return a * b


@server.tool()
def count(by: int) -> int:
    """Counts up, as long as the server lives."""
    global total  # noqa: PLW0603 - the state is the process's
    total += by
    return total


@server.tool()
def fail() -> str:
    """Fails."""
    raise ToolError("no such file")


@server.tool()
def secret() -> str:
    """Says what it was given, and no more."""
    return f"{os.environ.get('SMALL_SECRET')} {os.environ.get('NOT_PASSED')}"


@server.tool()
async def wait(seconds: float) -> str:
    """Waits."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
