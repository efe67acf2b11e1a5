"""One tool: what the model is told of it, and what it takes to call it.

A tool is made of a Python function, of a class, or of what an MCP server offers:

    function    `def add(a: int, b: int) -> int`: no state
    class       `call(**arguments)`, and optionally `create(sample, **config)` (a classmethod), `release()`, and
                `state_dict()` with `load_state_dict(state)`, or `deterministic = True`, by which it comes back as an
                environment does: one instance for each trajectory

Each may be sync (it runs in a thread) or async. What it returns becomes text; a `ToolResult` carries a reward as well.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jsonschema
import orjson
from jsonschema.protocols import Validator

from stream_rl.agents.loading import load_object
from stream_rl.envs.base import ResumeClass, resume_class
from stream_rl.errors import ConfigError
from stream_rl.tools.settings import ToolSettings

__all__ = ["Tool", "ToolResult", "function_tool", "load_tool", "make_tool"]

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave: the text that the model sees, and what it adds to the episode's reward.

    `failed` says that the text is an error's which need not be the model's mistake; it is only counted.
    """

    text: str
    reward: float = 0.0
    failed: bool = False

    @classmethod
    def of(cls, value: Any) -> ToolResult:
        """Text stays, other values become JSON. Raises TypeError for what is no JSON."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            return cls(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode())
        return cls(value.encode(errors="replace").decode())  # half a surrogate pair can be written nowhere


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a trajectory can open.

    schema    {"type": "function", "function": {"name", "description", "parameters"}}, as chat templates take it
    open      (sample) -> an object with `call(**arguments)` and optionally `release()`, each sync or async
    resume    how an instance comes back; None: it keeps nothing from call to call
    """

    schema: Mapping[str, Any]
    open: Callable[[Any], Any]
    resume: ResumeClass | None
    validator: Validator

    @property
    def name(self) -> str:
        """What the model calls it."""
        return str(self.schema["function"]["name"])

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Why the arguments do not fit the schema, for the model; None when they do."""
        error = jsonschema.exceptions.best_match(self.validator.iter_errors(dict(arguments)))
        return None if error is None else f"the arguments of {self.name} do not fit: {error.message[:200]}"


def make_tool(
    name: str,
    description: str,
    parameters: Mapping[str, Any],
    open_: Callable[[Any], Any],
    resume: ResumeClass | None = None,
) -> Tool:
    """A tool from its parts. Raises ConfigError for a name that no model can write, and for a schema that is none."""
    if not NAME.match(name):
        raise ConfigError(f"tool {name!r}: a name has up to 64 letters, digits, dots, _ and -")
    strict = _with_nullable(parameters)
    try:
        validator_class = jsonschema.validators.validator_for(strict, default=jsonschema.Draft202012Validator)
        validator_class.check_schema(strict)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"tool {name!r}: its parameters are no JSON schema: {error.message}") from error
    function = {"name": name, "description": description, "parameters": dict(parameters)}
    return Tool({"type": "function", "function": function}, open_, resume, validator_class(strict))


def load_tool(settings: ToolSettings) -> Tool:
    """The tool that `path` names. Raises ConfigError, which names the path, for whatever is wrong with it."""
    assert settings.path is not None
    found = _find(settings.path)
    if not inspect.isclass(found):
        return function_tool(found, settings.parameters)
    call = getattr(found, "call", None)
    if not callable(call):
        raise ConfigError(f"tool {settings.path!r}: a class needs a method call(self, **arguments)")
    create = partial(getattr(found, "create", lambda _sample, **config: found(**config)), **settings.config)
    name = getattr(found, "name", None) or re.sub(r"(?<!^)(?=[A-Z])", "_", found.__name__).lower()
    description, parameters = _described(call, settings.parameters, found.__doc__)
    return make_tool(str(name), description, parameters, create, resume_class(found))


def function_tool(function: Callable[..., Any], parameters: Mapping[str, Any] | None = None) -> Tool:
    """A tool of a plain function, sync or async. Without `parameters` its annotations and docstring say them."""
    callee = _Function(function)
    described = _described(function, parameters, None)
    return make_tool(function.__name__, *described, lambda _sample: callee)


@dataclass(frozen=True, slots=True)
class _Function:
    call: Callable[..., Any]


def _described(
    function: Callable[..., Any], parameters: Mapping[str, Any] | None, doc: str | None
) -> tuple[str, Mapping[str, Any]]:
    if parameters is not None:
        return inspect.cleandoc(function.__doc__ or doc or "").partition("\n\n")[0], parameters
    from transformers.utils.chat_template_utils import get_json_schema  # noqa: PLC0415 - seconds to import: only who has tools pays

    try:
        schema = get_json_schema(function)["function"]
    except Exception as error:  # of several private types, and whatever resolving an annotation raises
        raise ConfigError(
            f"tool {function.__qualname__}: {error}: annotate its arguments and describe each under `Args:` in the "
            "docstring, or give parameters"
        ) from error
    return schema["description"], schema["parameters"]


def _with_nullable(schema: Any) -> Any:
    """The schema with OpenAPI's `nullable`, which transformers writes for `X | None`, in JSON schema's own words."""
    if isinstance(schema, list):
        return [_with_nullable(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    parts = {key: _with_nullable(value) for key, value in schema.items() if (key, value) != ("nullable", True)}
    return {"anyOf": [parts, {"type": "null"}]} if len(parts) < len(schema) else parts


def _find(path: str) -> Any:
    if ":" not in path:
        raise ConfigError(f"tool {path!r} must be module:name")
    found = load_object(path, f"tool {path!r}", "give module:name", ConfigError)
    if not callable(found):
        raise ConfigError(f"tool {path!r} is no function and no class")
    return found
