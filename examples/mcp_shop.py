"""An MCP server with one tool, for examples/mcp_tool.yaml: a program of its own that knows nothing of stream_rl."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

PRICES = {"apple": 3, "bread": 4, "cheese": 9, "honey": 7, "melon": 6, "tea": 5}
"""In coins, for one."""

server = MCPServer("shop")


@server.tool()
def price(item: str, count: int = 1) -> int:
    """The price of so many of an item, in coins."""
    if item not in PRICES:
        raise ToolError(f"there is no {item} here, but {', '.join(PRICES)}")
    return count * PRICES[item]


if __name__ == "__main__":
    server.run("stdio")
