"""Tools for the tests, of every kind, and a context that runs them without an engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

from stream_rl.agents import AgentContext
from stream_rl.agents.context import Surroundings
from stream_rl.agents.handover import Handover
from stream_rl.envs.base import EnvSample
from stream_rl.errors import ActionError, EnvInfraError
from stream_rl.tools.settings import ToolAgentSettings
from stream_rl.tools.tool import ToolResult

HERE = "tool_fixtures"


class World:
    """What outlives the tools: calls made, faults still to come, threads seen."""

    calls: ClassVar[list[str]] = []
    faults: ClassVar[list[Any]] = []
    threads: ClassVar[set[str]] = set()

    @classmethod
    def clear(cls) -> None:
        cls.calls, cls.faults, cls.threads = [], [], set()


def add(a: int, b: int = 1) -> int:
    """Adds two whole numbers.

    Args:
        a: the first
        b: the second
    """
    World.calls.append(f"add {a} {b}")
    World.threads.add(threading.current_thread().name)
    fault = World.faults.pop(0) if World.faults else None
    if isinstance(fault, float):
        time.sleep(fault)
    elif fault is not None:
        raise fault
    return a + b


async def slow_echo(text: str | None) -> str:
    """Says it again.

    Args:
        text: what to say
    """
    World.calls.append(f"begin {text}")
    await asyncio.sleep(0)
    World.calls.append(f"end {text}")
    return str(text)


def divide(a: float, b: float) -> ToolResult:
    """Divides; half a point for every division.

    Args:
        a: above the line
        b: below the line
    """
    if b == 0:
        raise ActionError("nothing is divided by zero", reward=-0.5)
    return ToolResult(str(a / b), reward=0.5)


class Counter:
    """Counts up."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    @classmethod
    def create(cls, sample: EnvSample, start: int = 0) -> Counter:
        World.calls.append(f"create for {sample.label}")
        return cls(start)

    def call(self, by: int) -> int:
        """Counts up and says how far.

        Args:
            by: how much
        """
        World.calls.append(f"count {by}")
        self.value += by
        return self.value

    def release(self) -> None:
        World.calls.append(f"release at {self.value}")


class ReplayedCounter(Counter):
    deterministic = True
    name = "counter"


class SnapshotCounter(Counter):
    name = "counter"

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        World.calls.append(f"load {state['value']}")
        self.value = state["value"]


class Words:
    """A tokenizer of space-separated words."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[str]:
        return text.split()

    def decode(self, ids: list[str], **_: Any) -> str:
        return " ".join(ids)


async def in_place(function: Callable[[], Any]) -> Any:
    """Calls as the producer does: sync functions in a thread, and failures without a name are infrastructure."""
    try:
        if asyncio.iscoroutinefunction(function):
            return await function()
        return await asyncio.to_thread(function)
    except (EnvInfraError, TimeoutError):
        raise
    except Exception as error:
        raise EnvInfraError(f"{type(error).__name__}: {error}", cause="unknown") from error


def context(results: dict[int, Any] | None = None) -> AgentContext:
    """A context for tools alone: it has no engine."""
    chat = SimpleNamespace(tokenizer=Words())
    return AgentContext(Surroundings(EnvSample("q", 7), (), SimpleNamespace(), {}, chat, in_place), Handover(results))


def settings(*tools: Any, **more: Any) -> ToolAgentSettings:
    return ToolAgentSettings.within(
        "args", {"tools": [f"{HERE}:{t}" if isinstance(t, str) else t for t in tools], **more}
    )
