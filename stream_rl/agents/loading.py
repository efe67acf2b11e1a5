"""Finds a loop by the name that a dataset or a setting gives it. Whatever is wrong with one is an `AgentLoadError`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stream_rl.agents.context import AgentContext
from stream_rl.envs.loading import SLIME_HINT, is_module, wants_slime
from stream_rl.errors import AgentLoadError, UserError
from stream_rl.suggestion import did_you_mean

__all__ = ["MULTI_TURN_ENV", "SHIPPED", "SINGLE_TURN", "Agent", "Agents", "Make", "load_object"]

Make = Callable[[AgentContext], Any]
"""Makes the loop of one sample."""

SINGLE_TURN, MULTI_TURN_ENV = "single_turn_agent", "multi_turn_env"

SHIPPED = {
    SINGLE_TURN: "stream_rl.agents.single_turn:SingleTurnAgent",
    "tool_agent": "stream_rl.tools.agent:ToolAgent",
    MULTI_TURN_ENV: None,
}
"""Loops that ship; the environment's is the turn loop itself."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A loop that was found.

    name  as it was asked for
    make  None where the environment answers the model
    """

    name: str
    make: Make | None


class Agents:
    """The loops of a run, each loaded once.

    Args:
        registered: setting `rollout.agents`, names and where their loops stand.
        default: the loop of rows that name none.
        of_function: makes a loop of an async function, by (name, function); raises AgentLoadError for one that is none.
    """

    def __init__(self, registered: Mapping[str, str], default: str, of_function: Callable[[str, Any], Make]) -> None:
        self.default = default
        self._registered = registered
        self._of_function = of_function
        self._loaded: dict[str, Agent] = {}

    def find(self, name: str | None) -> Agent:
        """The loop with this name, the default one for None. Raises AgentLoadError."""
        name = self.default if name is None else name
        if not isinstance(name, str):
            raise AgentLoadError(f"agent_name={name!r} must be text")
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> Agent:
        path = self._registered.get(name, SHIPPED.get(name, name))
        if path is None:
            return Agent(name, None)
        if name == path and ":" not in name and "." not in name:
            raise AgentLoadError(f"there is no agent loop {name!r}: {self._hint(name)}")
        found = load_object(path, f"agent loop {name!r}", self._hint(name))
        if inspect.isclass(found):
            return Agent(name, _of_class(name, found))
        if inspect.iscoroutinefunction(found) or hasattr(found, "__wrapped__"):
            return Agent(name, self._of_function(name, found))
        raise AgentLoadError(
            f"agent loop {name!r} is a {type(found).__name__}, and must be a class or an async function"
        )

    def _hint(self, name: str) -> str:
        known = [*self._registered, *SHIPPED]
        return did_you_mean(name, known, f"give module:Class, or one of {', '.join(known)}", likeness=0.5)


def load_object(path: str, what: str, hint: str, refusal: type[UserError] = AgentLoadError) -> Any:
    """What "module:name" or "module.name" leads to. Raises `refusal`, whose message begins with `what`."""
    module, _, name = path.rpartition(":" if ":" in path else ".")
    if not module or not is_module(module):
        raise refusal(f"{what} is not there: Python finds no module {module or path!r}; {hint}")
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a user's module may raise anything when it is imported
        first = str(error).partition("\n")[0]
        also = f"; {SLIME_HINT}" if wants_slime(error) else ""
        raise refusal(f"{what} cannot be imported: {type(error).__name__}: {first}{also}") from error
    if not hasattr(found, name):
        public = [known for known in vars(found) if not known.startswith("_")]
        raise refusal(f"{what}: module {module!r} has no {name!r}: {did_you_mean(name, public, hint)}")
    return getattr(found, name)


def _of_class(name: str, found: type[Any]) -> Make:
    run = getattr(found, "run", None)
    if not inspect.iscoroutinefunction(run):
        raise AgentLoadError(f"agent loop {name!r} must have `async def run(self, sampling_params, **kwargs)`")
    if not _takes(found, None):
        raise AgentLoadError(f"agent loop {name!r} must be made from its context: derive it from AgentLoop")
    if not _takes(run, None, None, label=None):
        raise AgentLoadError(f"agent loop {name!r}: its run must take (self, sampling_params, **kwargs)")
    return found


def _takes(function: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError:
        return False
    except ValueError:  # a callable of C has no signature
        return True
    return True
