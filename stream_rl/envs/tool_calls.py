"""What a model's text asks of its tools: one parser for each way in which models write calls.

A parser is pure: text in, calls out, in the order in which they stand. What was meant as a call and is none comes out
as `Undecodable`, with a reason that the model can act on; it never vanishes. Text without any sign of a call gives an
empty list: the model's plain answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

__all__ = ["PARSERS", "Parsed", "Parser", "ToolCall", "Undecodable"]

THOUGHT_END = "</think>"
PYTHON_TAG = "<|python_tag|>"
_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it; `arguments` are plain JSON values, not yet checked against the tool's schema."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Undecodable:
    """What was meant as a call and is none. `reason` is for the model."""

    reason: str


Parsed = ToolCall | Undecodable
Parser = Callable[[str], list[Parsed]]


def parse_hermes(text: str) -> list[Parsed]:
    """Calls of Hermes and Qwen models: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them.

    The last closing tag may be missing, as models like to stop before it.
    """
    return [_decode_one(found[1].strip()) for found in _HERMES.finditer(_said(text))]


def parse_llama3_json(text: str) -> list[Parsed]:
    """Calls of Llama-3 models: `{"name": ..., "parameters": {...}}`, several of them separated by `;`.

    A python tag before them says that they are calls. Without it, a response is calls when it is an object with a
    `name`, and a plain answer otherwise.
    """
    before, tag, after = _said(text).partition(PYTHON_TAG)
    body = (after if tag else before).strip()
    if not tag and not (body.startswith("{") and '"name"' in body):
        return []
    return list(_decode_separated(body))


PARSERS: Mapping[str, Parser] = {"hermes": parse_hermes, "llama3_json": parse_llama3_json}


def _said(text: str) -> str:
    """What follows the model's thoughts, in which a call is only considered. The first end is their end."""
    thought, end, said = text.partition(THOUGHT_END)
    return said if end else thought


def _decode_one(text: str) -> Parsed:
    try:
        value, end = _decode(text)
    except (ValueError, RecursionError) as error:
        return Undecodable(f"a tool call is no JSON: {error}")
    if text[end:].strip():
        return Undecodable(f"a tool call has more than one JSON object: {text[end:].strip()[:40]!r} follows it")
    return _call(value)


def _decode_separated(text: str) -> Iterator[Parsed]:
    while text:
        try:
            value, end = _decode(text)
        except (ValueError, RecursionError) as error:
            yield Undecodable(f"a tool call is no JSON: {error}")
            return
        yield _call(value)
        text = text[end:].strip()
        if text and not text.startswith(";"):
            yield Undecodable(f"tool calls are separated by ';', not by {text[:40]!r}")
            return
        text = text[1:].strip()


def _call(value: Any) -> Parsed:
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or not name:
        return Undecodable('a tool call must be a JSON object with "name" and "arguments"')
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):  # the form of the OpenAI protocol
        try:
            arguments, _ = _decode(arguments)
        except (ValueError, RecursionError) as error:
            return Undecodable(f"the arguments of {name[:40]!r} are no JSON: {error}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return Undecodable(f"the arguments of {name[:40]!r} must be a JSON object")
    return ToolCall(name, arguments)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


# Line breaks inside of strings are let through: models write code into arguments.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse)


def _decode(text: str) -> tuple[Any, int]:
    """The first JSON value of the text, and where it ends. Raises ValueError or RecursionError."""
    value, end = _DECODER.raw_decode(text)
    json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair decodes, but can be sent nowhere
    return value, end
