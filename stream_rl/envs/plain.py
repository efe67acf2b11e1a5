"""What a record can hold of a value: plain JSON, which comes back as it went in.

orjson would write NaN as null, and a date or an enum as text, in silence: what is read again would be something else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

__all__ = ["is_unicode", "odd_part", "plain_copy"]

INTEGERS = range(-(2**63), 2**64)
"""Those that a record can hold."""
SHOWN = 60
"""Characters of a value in a message."""


def plain_copy(value: Any) -> Any:
    """A value as a record keeps it; tuples become lists. Raises TypeError, in words, for what no record can hold."""
    plain = orjson.loads(orjson.dumps(value))
    if plain != value and (odd := odd_part(value)) is not None:  # a tuple differs from its list, and is none the worse
        raise TypeError(f"JSON cannot hold {odd}")
    return plain


def odd_part(value: Any) -> str | None:
    """The first part of a value that JSON cannot hold, in words; None where it can hold all."""
    if isinstance(value, Mapping):
        keys = [key for key in value if not isinstance(key, str)]
        return f"the key {_shown(keys[0])}" if keys else _first_odd(value.values())
    if isinstance(value, list) or type(value) is tuple:
        return _first_odd(value)
    return None if _is_plain(value) else _shown(value)


def is_unicode(text: str) -> bool:
    """Whether a text can be written: half a surrogate pair can be nowhere."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _first_odd(values: Iterable[Any]) -> str | None:
    return next((odd for value in values if (odd := odd_part(value)) is not None), None)


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return is_unicode(value)
    if isinstance(value, int):  # booleans are
        return value in INTEGERS
    return value is None or (type(value) is float and math.isfinite(value))


def _shown(value: Any) -> str:
    return f"{value!r:.{SHOWN}} ({type(value).__name__})"
