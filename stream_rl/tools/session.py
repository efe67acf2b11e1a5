"""The tools of one trajectory: opened with it, called by what its model wrote, released with it.

Every call is answered, in the order in which the model wrote them: by its result, or by what is wrong with it. So a
trajectory never waits for an answer that does not come, and the model reads its mistakes. What fails on the world's
side is raised instead: the loop is brought back, and calls again what has not been answered.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stream_rl.agents import AgentContext
from stream_rl.envs.base import ResumeClass, mistakes_are_answers
from stream_rl.envs.tool_calls import Parsed, ToolCall, Undecodable
from stream_rl.errors import ActionError, EnvFatalError, EnvInfraError
from stream_rl.metrics import catalog
from stream_rl.metrics.tracing import annotate, spanned
from stream_rl.tools.tool import Tool, ToolResult
from stream_rl.tools.toolbox import Toolbox
from stream_rl.tools.truncation import truncate

__all__ = ["ToolAnswer", "ToolSession"]

logger = logging.getLogger(__name__)

NO_TOOL = ""
"""Label of calls of no tool: what a model makes up is no label."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What the model reads of one call.

    outcome  "ok", "error" (the tool's), or one of the model's mistakes: "mistake" (the tool or its schema says so),
             "unknown_tool", "undecodable", "too_many"
    """

    name: str
    text: str
    outcome: str
    reward: float = 0.0

    @property
    def mistaken(self) -> bool:
        """Whether the call was the model's mistake."""
        return self.outcome not in ("ok", "error")


class ToolSession:
    """Open instances of every tool. `open` it first; `release` it always."""

    def __init__(self, toolbox: Toolbox, context: AgentContext) -> None:
        self._toolbox = toolbox
        self._context = context
        self._tools: Mapping[str, Tool] = {}
        self._open: dict[str, Any] = {}

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        """What a chat template shows of the tools, once they are open."""
        return [tool.schema for tool in self._tools.values()]

    async def open(self) -> None:
        """Makes an instance of each tool. Raises EnvInfraError, or ConfigError for a tool that cannot be used."""
        self._tools = await self._toolbox.tools()
        for name, tool in self._tools.items():
            make = partial(tool.open, self._context.sample)
            self._open[name] = make() if tool.resume is None else await self._context.act(make)

    async def release(self) -> None:
        """Releases every instance; what one raises then concerns nobody any more."""
        while self._open:
            name, instance = self._open.popitem()
            if self._tools[name].resume is None:
                continue
            try:
                await self._context.act(getattr(instance, "release", _nothing))
            except (EnvInfraError, EnvFatalError) as error:
                logger.warning("tool %s: release failed: %s", name, error)

    async def answer(self, calls: Sequence[Parsed]) -> list[ToolAnswer]:
        """Runs the calls at the same time; one answer for each, in order.

        Raises:
            EnvInfraError: a tool failed or took longer than `tool_timeout`; the other calls are given up.
            EnvFatalError: a tool says that the episode cannot go on, or returned what is no JSON.
        """
        limit = self._toolbox.settings.max_parallel_calls
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(call)) for call in calls[:limit]]
        except ExceptionGroup as failures:
            worst = [failure for failure in failures.exceptions if not isinstance(failure, EnvInfraError)]
            raise (worst or failures.exceptions)[0] from failures
        refused = f"at most {limit} calls at a time: this one was not made"
        return [*(task.result() for task in tasks), *(_mistake(NO_TOOL, refused, "too_many") for _ in calls[limit:])]

    def state_dict(self) -> dict[str, Any]:
        """States of the tools that have one, by tool; none once they are released."""
        return {name: self._open[name].state_dict() for name in self._with_state() if name in self._open}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`, on a session just opened."""
        for name in self._with_state():
            self._open[name].load_state_dict(state[name])

    def _with_state(self) -> list[str]:
        return [name for name, tool in self._tools.items() if tool.resume is ResumeClass.SNAPSHOT]

    async def _one(self, call: Parsed) -> ToolAnswer:
        if isinstance(call, Undecodable):
            return _mistake(NO_TOOL, call.reason, "undecodable")
        tool = self._tools.get(call.name)
        if tool is None:
            there = ", ".join(self._tools)
            return _mistake(NO_TOOL, f"there is no tool {call.name[:40]!r}, but {there}", "unknown_tool")
        if reason := tool.refusal(call.arguments) or _binding(self._open[tool.name].call, call):
            return _mistake(tool.name, self._truncated(reason), "mistake")
        if tool.resume is None:
            return ToolAnswer(**await self._context.once(self._made, tool, call))
        return await self._made(tool, call)

    async def _made(self, tool: Tool, call: ToolCall) -> ToolAnswer:
        value = await self._called(tool, call)
        if isinstance(value, ActionError):
            return _mistake(tool.name, self._truncated(str(value)), "mistake", value.reward)
        try:
            result = ToolResult.of(value)
        except TypeError as error:
            raise EnvFatalError(f"tool {tool.name} returned what is neither text nor JSON: {value!r:.80}") from error
        return _answer(tool.name, self._truncated(result.text), "error" if result.failed else "ok", result.reward)

    @spanned("tool")
    async def _called(self, tool: Tool, call: ToolCall) -> Any:
        """What the tool returned, or the ActionError that it raised."""
        named = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool.name}
        annotate({**named, "input.value": str(call.arguments)})
        seconds, function = self._toolbox.settings.tool_timeout, self._open[tool.name].call
        try:
            async with asyncio.timeout(seconds):
                value = await self._context.act(mistakes_are_answers(partial(function, **call.arguments), function))
                annotate({"output.value": str(value)})
                return value
        except TimeoutError as error:
            catalog.TOOL_CALLS.inc(tool=tool.name, outcome="timeout")
            raise EnvInfraError(f"tool {tool.name}: no result within {seconds:g} seconds", cause="timeout") from error
        except EnvInfraError as error:
            catalog.TOOL_CALLS.inc(tool=tool.name, outcome="failed")
            raise EnvInfraError(f"tool {tool.name}: {error}", cause=error.cause) from error

    def _truncated(self, text: str) -> str:
        settings = self._toolbox.settings
        tokenizer = self._context.tokenizer
        return truncate(text, settings.max_tool_response_len, settings.tool_response_truncate_side, tokenizer)


def _answer(name: str, text: str, outcome: str, reward: float = 0.0) -> ToolAnswer:
    catalog.TOOL_CALLS.inc(tool=name, outcome=outcome)
    return ToolAnswer(name, text, outcome, reward)


def _mistake(name: str, reason: str, outcome: str, reward: float = 0.0) -> ToolAnswer:
    return _answer(name, f"Error: {reason}", outcome, reward)


def _binding(function: Callable[..., Any], call: ToolCall) -> str | None:
    """Why a function cannot be called so: a schema may allow more than it takes."""
    try:
        inspect.signature(function).bind(**call.arguments)
    except TypeError as error:
        return f"{call.name}: {error}"
    return None


def _nothing() -> None:
    pass
