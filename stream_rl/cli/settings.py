"""`stream-rl settings`: the reference of every setting, made from their types; docs/settings.md is its output."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from stream_rl.config import Config

__all__ = ["EXAMPLES", "settings", "settings_reference"]

EXAMPLES = """Example:

  stream-rl settings | grep scheduling
"""
INTRODUCTION = """# Settings

`stream-rl settings` prints this page. A run's settings are a YAML file plus `key.path=value` overrides, whose values
are YAML too. Unknown keys and wrong values stop the run before anything starts. Some may also be given by
[slime's names](slime.md#names-of-settings).
"""
BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def settings() -> None:
    """Print every setting: its key, type, default and meaning."""
    typer.echo(settings_reference(), nl=False)


def settings_reference() -> str:
    """The reference as Markdown: one table for the top level and one for each section."""
    top = {name: field for name, field in Config.model_fields.items() if not _is_section(field)}
    parts = [INTRODUCTION, _table("", top)]
    for name, field in Config.model_fields.items():
        if _is_section(field):
            section = field.annotation
            assert isinstance(section, type)
            assert issubclass(section, BaseModel)
            parts.append(f"## {name}\n\n{section.__doc__}\n")
            parts.append(_table(f"{name}.", section.model_fields))
    return "\n".join(parts)


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _table(prefix: str, fields: dict[str, FieldInfo]) -> str:
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        kind = " ".join([_type(field.annotation), *_bounds(field)]).replace("|", "\\|")
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        rows.append(f"| `{prefix}{name}` | {kind} | {_default(field)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _type(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " or ".join(str(part) for part in parts)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("empty" if part is type(None) else _type(part) for part in parts)
    if origin is not None:
        return {list: "list", dict: "mapping", tuple: "list"}[origin]
    return {str: "text", int: "integer", float: "number", bool: "true or false"}[annotation]


def _bounds(field: FieldInfo) -> Iterator[str]:
    for rule in field.metadata:
        for name, sign in BOUNDS.items():
            if (bound := getattr(rule, name, None)) is not None:
                yield f"{sign} {bound:g}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    assert value is not PydanticUndefined
    if value is None or value in ({}, []):
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value}`"
