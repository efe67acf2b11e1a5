"""What a record holds of a value comes back as it went in, or is refused."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import uuid
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stream_rl.envs.plain import is_unicode, odd_part, plain_copy

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


Pair = namedtuple("Pair", "a b")


@given(JSON)
def test_what_json_gives_back_is_kept(value: object) -> None:
    assert orjson.loads(orjson.dumps(value)) == value
    assert odd_part({"a": value}) is None


@pytest.mark.parametrize("value", [(1, 2), OrderedDict(a=1), MappingProxyType({"a": 1})])
def test_so_is_what_is_like_it(value: object) -> None:
    assert odd_part({"a": value}) is None


ODD = [
    b"png", math.nan, -math.inf, datetime.datetime(2026, 1, 1), datetime.date(2026, 1, 1), decimal.Decimal(1),
    {1, 2}, 2**64, -(2**63) - 1, "\ud800", {1: 2}, {None: 2}, np.float64(1), np.int64(1), np.zeros(2), Pair(1, 2),
    Image.new("RGB", (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("wrap", [lambda odd: odd, lambda odd: [0, odd], lambda odd: {"b": {"c": (odd,)}}])
def test_anything_else_is_odd_wherever_it_stands(value: object, wrap: object) -> None:
    assert odd_part({"a": 1, "when": wrap(value)}) is not None


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
