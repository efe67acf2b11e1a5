"""Records survive the way through bytes; anything else is named CorruptRecord before an array is made."""

from __future__ import annotations

import struct
from dataclasses import fields
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from journal_builders import START, turn

from stream_rl.buffer import SampleStart, codec
from stream_rl.buffer.records import Record
from stream_rl.errors import CorruptRecord
from stream_rl.sample import Turn, VersionSpan, WeightVersion

VERSION = WeightVersion(7)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
tokens = arrays(np.int32, st.integers(0, 20))
starts = st.builds(
    SampleStart, st.text() | st.lists(st.fixed_dictionaries({"role": st.text(), "content": st.text()})), tokens,
    st.floats(0, 2), st.integers(0, 2**31), json_values, st.dictionaries(st.text(), json_values, max_size=3),
)  # fmt: skip


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    generated = draw(tokens)
    cut = draw(st.integers(0, len(generated)))
    version = WeightVersion(draw(st.integers(0, 99)), draw(st.integers(0, 3)))
    spans = (VersionSpan(0, cut, WeightVersion(0)), VersionSpan(cut, len(generated), version))
    log_probs = draw(arrays(np.float32, len(generated)))
    return Turn(
        draw(st.integers(0, 99)), generated, log_probs, draw(tokens), spans, draw(st.booleans()), draw(st.text()),
        draw(st.floats(-9, 9)), images=tuple(draw(st.lists(st.text(), max_size=2))),
        environment=draw(st.none() | st.dictionaries(st.text(), json_values, max_size=2)), action=draw(st.text()),
    )  # fmt: skip


def assert_same(one: Record, two: Record) -> None:
    assert type(one) is type(two)
    for field in fields(one):
        mine, theirs = getattr(one, field.name), getattr(two, field.name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype
            assert mine.tobytes() == theirs.tobytes()
        else:
            assert mine == theirs, field.name


@given(starts | turns())
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert_same(record, codec.decode(codec.encode(record)))


@given(turns(), st.data())
def test_a_damaged_prefix_or_a_cut_is_named(record: Turn, data: st.DataObject) -> None:
    whole = codec.encode(record)
    with pytest.raises(CorruptRecord):
        codec.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CorruptRecord):
        codec.decode(whole + b"\0")
    place = data.draw(st.integers(0, 9))
    damaged = bytearray(whole)
    damaged[place] ^= 0xFF
    with pytest.raises(CorruptRecord):
        codec.decode(bytes(damaged))


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        codec.decode(data)


def with_header(**changes: Any) -> bytes:
    """A turn's record whose header lies about something."""
    whole = codec.encode(turn(0))
    magic, version, kind, length = struct.unpack_from("<4sBBI", whole)
    header = orjson.loads(whole[10 : 10 + length]) | changes
    text = orjson.dumps({name: value for name, value in header.items() if value != "absent"})
    return struct.pack("<4sBBI", magic, version, kind, len(text)) + text + whole[10 + length :]


@pytest.mark.parametrize(
    "changes",
    [
        {"arrays": [3, 3, 2**40]},
        {"arrays": [3, 3, -2]},
        {"arrays": [3, 3, 2.0]},
        {"arrays": [3, 3, "2"]},
        {"arrays": [3, 3, 1]},
        {"arrays": [3, 5]},
        {"arrays": [4, 2, 2]},
        {"arrays": None},
        {"spans": [[0, 2, 0, 0]]},
        {"spans": "absent"},
        {"index": "absent"},
        {"unheard_of": 1},
    ],
)
def test_a_header_that_lies_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecord):
        codec.decode(with_header(**changes))


def test_a_newer_format_says_so() -> None:
    data = bytearray(codec.encode(START))
    data[4] = 9
    with pytest.raises(CorruptRecord, match="format version 9; this program reads version 2"):
        codec.decode(bytes(data))


def test_what_is_as_it_is_by_default_takes_no_bytes() -> None:
    plain = Turn(
        0, np.zeros(3, np.int32), np.zeros(3, np.float32), np.zeros(2, np.int32), (VersionSpan(0, 3, VERSION),)
    )
    assert codec.encode(plain)[10:-32] == b'{"index":0,"spans":[[0,3,7,0]],"arrays":[3,3,2]}'


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="SampleStart holds a value that JSON cannot"):
        codec.encode(SampleStart("p", np.zeros(1, np.int32), label={1, 2}))


def test_a_record_over_the_limit_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    data = codec.encode(turn(0, 1000))
    monkeypatch.setattr(codec, "RECORD_LIMIT", len(data) - 1)
    with pytest.raises(ValueError, match="over the limit"):
        codec.encode(turn(0, 1000))
    with pytest.raises(CorruptRecord):
        codec.decode(data)


def test_arrays_are_views_of_the_record() -> None:
    decoded = codec.decode(codec.encode(turn(0)))
    assert isinstance(decoded, Turn)
    assert decoded.generated.base is not None
    assert not decoded.generated.flags.writeable
