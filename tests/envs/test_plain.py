"""What a record holds of a value comes back as it went in, or is refused."""

from __future__ import annotations

import datetime
import enum
import math
import uuid
from dataclasses import dataclass

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.envs.plain import is_unicode, plain_copy

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(), parts, max_size=3),
    max_leaves=8,
)  # fmt: skip


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int = 1


@given(JSON)
def test_a_copy_is_equal_and_a_tuple_becomes_a_list(value: object) -> None:
    assert plain_copy(value) == value
    assert plain_copy({"a": (value,)}) == {"a": [value]}


WRITTEN_AS_SOMETHING_ELSE = [math.nan, -math.inf, datetime.datetime(2026, 1, 1), uuid.UUID(int=1), Colour.RED, Point()]


@pytest.mark.parametrize("value", WRITTEN_AS_SOMETHING_ELSE, ids=lambda value: type(value).__name__)
def test_what_would_come_back_as_something_else_is_refused(value: object) -> None:
    assert orjson.loads(orjson.dumps(value)) != value
    with pytest.raises(TypeError, match="JSON cannot hold "):
        plain_copy({"a": [0, value]})


@pytest.mark.parametrize("value", [{1, 2}, b"png", 2**64, {1: 2}, "\ud800"], ids=repr)
def test_so_is_what_cannot_be_written(value: object) -> None:
    with pytest.raises(TypeError):
        plain_copy({"a": value})


def test_half_a_surrogate_pair_is_no_text() -> None:
    assert is_unicode("naïve 🙂")
    assert not is_unicode("a\udc80")
