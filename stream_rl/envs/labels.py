"""What an environment needs of a row's label, where a dataset may hold anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stream_rl.errors import DataError

__all__ = ["label_parts", "whole_number"]


def whole_number(label: Any, environment: str, lowest: int, highest: float = math.inf) -> int:
    """A label that must be a whole number; it may be written out, or a float, as tables with gaps have it.

    Args:
        environment: name of who needs it.
        lowest, highest: between which it must be.

    Raises:
        DataError: it is something else.
    """
    number = _number(label)
    if number is None or not lowest <= number <= highest:
        bound = f"from {lowest}" if highest == math.inf else f"from {lowest} to {highest}"
        raise _refusal(label, environment, f"a whole number {bound}")
    return number


def label_parts(label: Any, environment: str, *names: str) -> list[Any]:
    """The values of these names in a label that must be a mapping with them. Raises DataError."""
    if not isinstance(label, Mapping) or any(name not in label for name in names):
        raise _refusal(label, environment, f"a mapping with {' and '.join(names)}")
    return [label[name] for name in names]


def _number(label: Any) -> int | None:
    if isinstance(label, bool) or not isinstance(label, int | float | str):
        return None
    try:
        number = int(label)
    except (ValueError, OverflowError):
        return None
    return number if isinstance(label, str) or number == label else None


def _refusal(label: Any, environment: str, wanted: str) -> DataError:
    return DataError(
        f"a row's label is {label!r:.60}, and environment.path={environment!r} needs {wanted}: mend the row, or name "
        "the field that has it in data.label_field"
    )
