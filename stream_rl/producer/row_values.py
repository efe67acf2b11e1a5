"""What a row hands to its environment must come back from the sample's record as it went in: what JSON can hold.

orjson would write NaN as null and a date as text in silence: a resumed environment would be given something else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["not_to_be_kept"]

INTEGERS = range(-(2**63), 2**64)
"""Those that a record can hold."""
SHOWN = 60
"""Characters of a value in a message."""


def not_to_be_kept(fields: Mapping[str, Any]) -> str | None:
    """The first of a row's fields that no record can hold, in words for a message; None where each can."""
    for name, value in fields.items():
        if (odd := _odd(value)) is not None:
            return (
                f"field {name!r} holds {odd}, which JSON cannot: write it as text or a number, or leave it out; "
                "a field of images goes into data.image_field"
            )
    return None


def _odd(value: Any) -> str | None:
    """The first part of a value that JSON cannot hold, in words."""
    if isinstance(value, Mapping):
        keys = [key for key in value if not isinstance(key, str)]
        return f"the key {_shown(keys[0])}" if keys else _first_odd(value.values())
    if isinstance(value, list) or type(value) is tuple:
        return _first_odd(value)
    return None if _is_plain(value) else _shown(value)


def _first_odd(values: Iterable[Any]) -> str | None:
    return next((odd for value in values if (odd := _odd(value)) is not None), None)


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return value.isascii() or _is_unicode(value)
    if isinstance(value, int):  # booleans are
        return value in INTEGERS
    return value is None or (type(value) is float and math.isfinite(value))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    return f"{value!r:.{SHOWN}} ({type(value).__name__})"
