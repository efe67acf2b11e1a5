"""Records as bytes: a fixed prefix, an orjson header, then the arrays' raw little-endian bytes.

    magic "SRLB" | version u8 | kind u8 | header length u32 | header (JSON) | arrays, one after another

The kind says which arrays there are, of which dtypes; the header has their lengths, and each field that is not as its
class has it by default. A reader checks magic, version, kind, and that all lengths add up to the record's size before
it touches an array; arrays are views of the record, nothing is copied. With `"zstd": true` in the header the arrays'
bytes are one zstd frame; their size is checked before it is unpacked.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from stream_rl.buffer.records import Record, SampleStart
from stream_rl.buffer.wire import Pieces
from stream_rl.errors import CorruptRecord
from stream_rl.sample import Turn, VersionSpan, WeightVersion

__all__ = ["decode", "encode", "fingerprint", "pieces"]

MAGIC = b"SRLB"
VERSION = 2
RECORD_LIMIT = 64 * 2**20

_PREFIX = struct.Struct("<4sBBI")
_START, _TURN = 0, 1
# Every dtype has four bytes.
_LAYOUTS = {
    _START: (("prompt_tokens", "<i4"),),
    _TURN: (("generated", "<i4"), ("log_probs", "<f4"), ("observation", "<i4")),
}
_CLASSES: dict[int, type[SampleStart] | type[Turn]] = {_START: SampleStart, _TURN: Turn}


def _header_fields(kind: int) -> tuple[tuple[str, Any], ...]:
    """The fields that the header has as they are, with their defaults."""
    arrays = {name for name, _ in _LAYOUTS[kind]}
    return tuple(
        (one.name, one.default if one.default_factory is MISSING else one.default_factory())
        for one in fields(_CLASSES[kind])
        if one.name not in arrays and one.name != "spans"
    )


_FIELDS = {kind: _header_fields(kind) for kind in _LAYOUTS}
_TUPLES = {name for of_kind in _FIELDS.values() for name, default in of_kind if default == ()}


def encode(record: Record, *, zstd: bool = False) -> bytes:
    """One record as bytes, its arrays compressed if asked. Raises ValueError as `pieces`."""
    return b"".join(pieces(record, zstd=zstd))


def pieces(record: Record, *, zstd: bool = False) -> Pieces:
    """The same as prefix and header, then the arrays: views of the record's own, which must not change meanwhile.

    Raises:
        ValueError: a label, metadata or environment state that JSON cannot hold, or a record over RECORD_LIMIT.
    """
    kind = _START if isinstance(record, SampleStart) else _TURN
    header = {name: value for name, default in _FIELDS[kind] if (value := getattr(record, name)) != default}
    if isinstance(record, Turn):
        header["spans"] = [[span.start, span.end, *span.version] for span in record.spans]
    arrays = [np.ascontiguousarray(getattr(record, name), dtype) for name, dtype in _LAYOUTS[kind]]
    header["arrays"] = [len(array) for array in arrays]
    parts: Pieces = [array.data.cast("B") for array in arrays if array.size]
    if zstd:
        header["zstd"] = True
        parts = [_zstd().compress(b"".join(parts), asbytes=True)]
    try:
        text = orjson.dumps(header, default=_plain)
    except TypeError as error:
        raise ValueError(f"{type(record).__name__} holds a value that JSON cannot: {error}") from error
    size = _PREFIX.size + len(text) + sum(array.nbytes for array in arrays)
    if size > RECORD_LIMIT:
        raise ValueError(f"a record of {size} bytes is over the limit of {RECORD_LIMIT}")
    return [_PREFIX.pack(MAGIC, VERSION, kind, len(text)) + text, *parts]


def fingerprint(parts: Pieces) -> int:
    """Tells apart contents for one place in one journal, where by right there is but one: made of the header's CRC-32
    and the sums of the arrays' words. It runs at memory's speed; a CRC of it all would take as long as sending it.
    """
    check = zlib.crc32(parts[0])
    for part in parts[1:]:
        whole = len(part) // 4
        total = np.add.reduce(np.frombuffer(part, "<u4", whole), dtype=np.uint32)
        check = zlib.crc32(int(total).to_bytes(4, "little") + part[4 * whole :], check)
    return check


def decode(data: bytes | memoryview) -> Record:
    """The inverse of `encode`; arrays are read-only views of `data`. Raises CorruptRecord."""
    kind, header, body = _parse(data)
    header |= _arrays(kind, header.pop("arrays", None), body, packed=header.pop("zstd", False) is True)
    try:
        header |= {name: tuple(header[name]) for name in _TUPLES & header.keys()}
        if kind == _START:
            return SampleStart(**header)
        header["spans"] = tuple(VersionSpan(a, b, WeightVersion(s, i)) for a, b, s, i in header["spans"])
        return Turn(**header)
    except (TypeError, ValueError, KeyError) as error:
        raise CorruptRecord(f"the header does not fit its kind: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} {value!r}")


def _parse(data: bytes | memoryview) -> tuple[int, dict[str, Any], memoryview]:
    if not _PREFIX.size <= len(data) <= RECORD_LIMIT:
        raise CorruptRecord(f"a record of {len(data)} bytes")
    magic, version, kind, length = _PREFIX.unpack_from(data)
    if magic != MAGIC or kind not in _LAYOUTS:
        raise CorruptRecord(f"not a record: magic {magic!r}, kind {kind}")
    if version != VERSION:
        raise CorruptRecord(f"a record of format version {version}; this program reads version {VERSION}")
    if length > len(data) - _PREFIX.size:
        raise CorruptRecord(f"a header of {length} bytes in a record of {len(data)}")
    view = memoryview(data)
    try:
        header = orjson.loads(view[_PREFIX.size : _PREFIX.size + length])
    except orjson.JSONDecodeError as error:
        raise CorruptRecord(f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CorruptRecord("the header is not an object")
    return kind, header, view[_PREFIX.size + length :]


def _arrays(kind: int, lengths: Any, body: memoryview, *, packed: bool) -> dict[str, NDArray[Any]]:
    layout = _LAYOUTS[kind]
    if not isinstance(lengths, list) or len(lengths) != len(layout):
        raise CorruptRecord(f"array lengths {lengths} where {len(layout)} belong")
    if any(type(length) is not int or length < 0 for length in lengths):
        raise CorruptRecord(f"array lengths {lengths}")
    sizes = [4 * length for length in lengths]
    if packed:
        body = _unpacked(body, sum(sizes))
    if sum(sizes) != len(body):
        raise CorruptRecord(f"arrays of {sum(sizes)} bytes in a body of {len(body)}")
    arrays, at = {}, 0
    for (name, dtype), length, size in zip(layout, lengths, sizes, strict=True):
        arrays[name] = np.frombuffer(body, dtype, length, at)
        at += size
    return arrays


def _unpacked(body: memoryview, size: int) -> memoryview:
    if size > RECORD_LIMIT:
        raise CorruptRecord(f"arrays of {size} bytes")
    try:
        return memoryview(_zstd().decompress(body, decompressed_size=size))
    except (OSError, ValueError) as error:
        raise CorruptRecord(f"the arrays are no zstd frame of {size} bytes: {error}") from error


@functools.cache
def _zstd() -> Any:
    import pyarrow  # noqa: PLC0415 - slow to import: only runs that compress pay

    return pyarrow.Codec("zstd", compression_level=1)
