"""What a row hands to its environment is kept as it is, or refused by its field."""

from __future__ import annotations

import datetime
import decimal
import math
from collections import OrderedDict, namedtuple
from types import MappingProxyType

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stream_rl.producer.row_values import not_to_be_kept

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(), parts, max_size=3),
    max_leaves=8,
)  # fmt: skip
Pair = namedtuple("Pair", "a b")


@given(JSON)
def test_what_json_gives_back_is_kept(value: object) -> None:
    assert orjson.loads(orjson.dumps(value)) == value
    assert not_to_be_kept({"a": value}) is None


@pytest.mark.parametrize("value", [(1, 2), OrderedDict(a=1), MappingProxyType({"a": 1})])
def test_so_is_what_is_like_it(value: object) -> None:
    assert not_to_be_kept({"a": value}) is None


ODD = [
    b"png", math.nan, -math.inf, datetime.datetime(2026, 1, 1), datetime.date(2026, 1, 1), decimal.Decimal(1),
    {1, 2}, 2**64, -(2**63) - 1, "\ud800", {1: 2}, {None: 2}, np.float64(1), np.int64(1), np.zeros(2), Pair(1, 2),
    Image.new("RGB", (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("wrap", [lambda odd: odd, lambda odd: [0, odd], lambda odd: {"b": {"c": (odd,)}}])
def test_anything_else_names_its_field_and_value(value: object, wrap: object) -> None:
    reason = not_to_be_kept({"a": 1, "when": wrap(value)})

    assert reason is not None
    assert reason.startswith("field 'when' holds ")
