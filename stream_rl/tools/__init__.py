"""Tools that a model may call: schemas, parsers of calls, calling, MCP servers, and the agent that uses them."""

from stream_rl.tools.tool import ToolResult

__all__ = ["ToolResult"]
