"""Settings of the tools that an agent has. Imports no torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from stream_rl.config_sections import Settings

__all__ = ["McpSettings", "ToolAgentSettings", "ToolSettings"]


class McpSettings(Settings):
    """An MCP server: a `command` that is spoken to over its standard input and output, or the `url` of one."""

    command: list[str] | None = None
    """Program and arguments, started by whoever connects; `python` is the interpreter that the run has."""
    url: str | None = None
    """Address of a server of the streamable HTTP transport, for instance `http://127.0.0.1:8000/mcp`."""
    pass_env: list[str] = Field(default_factory=list)
    """Environment variables that the command gets, besides HOME, LOGNAME, PATH, SHELL, TERM and USER."""
    token_env: str | None = None
    """Environment variable with the bearer token that the URL wants."""
    scope: Literal["process", "trajectory"] = "process"
    """One connection for all trajectories of a producer, or, where the server keeps state, one for each."""
    tools: list[str] | None = None
    """The tools to offer of those that the server has. Empty: all."""
    start_timeout: float = Field(30.0, gt=0)
    """Seconds to connect and to list the tools."""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> McpSettings:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either command or url")
        if self.command == []:
            raise ValueError("command is empty")
        return self


class ToolSettings(Settings):
    """One tool, or all tools of an MCP server."""

    path: str | None = None
    """`module:name` of a Python function, sync or async, or of a class: one instance of it for each trajectory."""
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments. Empty: from the signature and the docstring."""
    config: dict[str, Any] = Field(default_factory=dict)
    """What a tool class is created with."""
    mcp: McpSettings | None = None
    """An MCP server instead of a path."""

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _is_one_of_two(self) -> ToolSettings:
        if (self.path is None) == (self.mcp is None):
            raise ValueError("give either path (module:name) or mcp")
        return self


class ToolAgentSettings(Settings):
    """What an agent may call, how its model writes calls, and what a call may cost."""

    tools: list[ToolSettings] = Field(min_length=1)
    """The tools: `module:name`, or a section with `path` or `mcp`."""
    shown_by: Literal["template", "prompt"] = "template"
    """What tells the model of its tools: the chat template, or the prompt, where the template does not show any."""
    parser: Literal["hermes", "llama3_json"] = "hermes"
    """How the model writes calls: hermes for Qwen, Hermes and most others, llama3_json for Llama 3."""
    max_tool_response_len: int = Field(256, gt=8)
    """Tokens of one result that the model sees; what is longer is cut, and says so."""
    tool_response_truncate_side: Literal["left", "middle", "right"] = "middle"
    """Where a result is cut."""
    tool_timeout: float = Field(30.0, gt=0)
    """Seconds that one call may take; then it failed, and the turn is tried again. Below environment.step_timeout."""
    max_parallel_calls: int = Field(8, gt=0)
    """Calls of one turn, which run at the same time; further ones are answered by a refusal."""
