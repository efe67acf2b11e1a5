"""Records as bytes: a fixed prefix, an orjson header, then the arrays' raw little-endian bytes.

    magic "SRLB" | version u8 | kind u8 | header length u32 | header (JSON) | arrays, one after another

The header lists each array as [name, dtype, length]. A reader checks magic, version, kind, names, dtypes and that all
lengths add up to the record's size before it touches an array; arrays are views of the record, nothing is copied. With
`"zstd": true` in the header the arrays' bytes are one zstd frame; their size is checked before it is unpacked.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from stream_rl.buffer.records import Record, SampleStart
from stream_rl.errors import CorruptRecord
from stream_rl.sample import Turn, VersionSpan, WeightVersion

__all__ = ["decode", "encode"]

MAGIC = b"SRLB"
VERSION = 1
RECORD_LIMIT = 64 * 2**20

_PREFIX = struct.Struct("<4sBBI")
_START, _TURN = 0, 1
_LAYOUTS = {
    _START: (("prompt_tokens", "<i4"),),
    _TURN: (("generated", "<i4"), ("log_probs", "<f4"), ("observation", "<i4")),
}
_TURN_FIELDS = (
    "index", "complete", "finish_reason", "reward", "env_retries", "parse_failures", "active_seconds", "timings",
    "images", "environment", "action",
)  # fmt: skip
_START_FIELDS = ("prompt", "temperature", "sampling_seed", "label", "metadata")


def encode(record: Record, *, zstd: bool = False) -> bytes:
    """One record as bytes, its arrays compressed if asked.

    Raises:
        ValueError: a label, metadata or environment state that JSON cannot hold, or a record over RECORD_LIMIT.
    """
    kind = _START if isinstance(record, SampleStart) else _TURN
    fields = _START_FIELDS if kind == _START else _TURN_FIELDS
    header: dict[str, Any] = {name: getattr(record, name) for name in fields}
    if isinstance(record, Turn):
        header["spans"] = [[span.start, span.end, *span.version] for span in record.spans]
    arrays = [np.ascontiguousarray(getattr(record, name), dtype) for name, dtype in _LAYOUTS[kind]]
    header["arrays"] = [[name, dtype, len(a)] for (name, dtype), a in zip(_LAYOUTS[kind], arrays, strict=True)]
    parts: list[Any] = [array.data.cast("B") if array.size else b"" for array in arrays]
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
    return b"".join([_PREFIX.pack(MAGIC, VERSION, kind, len(text)), text, *parts])


def decode(data: bytes) -> Record:
    """The inverse of `encode`; arrays are read-only views of `data`. Raises CorruptRecord."""
    kind, header, body = _parse(data)
    header |= _arrays(kind, header.pop("arrays", None), body, packed=header.pop("zstd", False) is True)
    try:
        if kind == _START:
            return SampleStart(**header)
        header["spans"] = tuple(VersionSpan(a, b, WeightVersion(s, i)) for a, b, s, i in header["spans"])
        header["images"] = tuple(header["images"])
        return Turn(**header)
    except (TypeError, ValueError, KeyError) as error:
        raise CorruptRecord(f"the header does not fit its kind: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} {value!r}")


def _parse(data: bytes) -> tuple[int, dict[str, Any], memoryview]:
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


def _arrays(kind: int, listed: Any, body: memoryview, *, packed: bool) -> dict[str, NDArray[Any]]:
    layout = _LAYOUTS[kind]
    wanted = [[name, dtype] for name, dtype in layout]
    if not isinstance(listed, list) or [entry[:2] for entry in listed if isinstance(entry, list)] != wanted:
        raise CorruptRecord(f"arrays {listed} where {wanted} belong")
    lengths: list[int] = [entry[-1] for entry in listed]
    if any(len(entry) != 3 or type(entry[2]) is not int or entry[2] < 0 for entry in listed):
        raise CorruptRecord(f"array lengths {lengths}")
    sizes = [length * np.dtype(dtype).itemsize for length, (_, dtype) in zip(lengths, layout, strict=True)]
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
