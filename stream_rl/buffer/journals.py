"""Reads journals back, in pieces of bounded size: other calls on the same Redis never wait behind a large answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from redis.asyncio.client import Pipeline

from stream_rl.buffer import codec
from stream_rl.buffer.connection import Connection
from stream_rl.buffer.records import Record, SampleStart
from stream_rl.errors import CorruptRecord
from stream_rl.sample import Turn

CHUNK_BYTES = 8 * 2**20


class Stored(NamedTuple):
    """A journal's size, as its sample's hash has it."""

    sample: str
    records: int
    size: int


class Piece(NamedTuple):
    """Records [start, stop] of one journal; `size` is a guess from the journal's mean record."""

    sample: str
    start: int
    stop: int
    size: int


async def read_journals(connection: Connection, stored: Sequence[Stored]) -> dict[str, list[Record]]:
    """Every record of each journal, decoded, keyed by sample. Raises CorruptRecord."""
    journals: dict[str, list[Record]] = {entry.sample: [] for entry in stored}
    for pieces in chunks(stored):

        def fill(pipe: Pipeline, pieces: list[Piece] = pieces) -> None:
            for piece in pieces:
                pipe.lrange(connection.key("journal", piece.sample), piece.start, piece.stop)

        for piece, records in zip(pieces, await connection.pipeline(fill), strict=True):
            journals[piece.sample] += [codec.decode(record) for record in records]
    return journals


def chunks(stored: Iterable[Stored]) -> Iterator[list[Piece]]:
    """Groups the journals' pieces so that each list is about CHUNK_BYTES at most."""
    chunk: list[Piece] = []
    total = 0
    for piece in (piece for entry in stored for piece in _pieces(entry)):
        if chunk and total + piece.size > CHUNK_BYTES:
            yield chunk
            chunk, total = [], 0
        chunk.append(piece)
        total += piece.size
    if chunk:
        yield chunk


def _pieces(entry: Stored) -> Iterator[Piece]:
    count = max(1, -(-entry.size // CHUNK_BYTES))
    step = max(1, -(-entry.records // count))
    for start in range(0, entry.records, step):
        stop = min(start + step, entry.records) - 1
        yield Piece(entry.sample, start, stop, entry.size * (stop - start + 1) // entry.records)


def split(sample: str, records: Sequence[Record]) -> tuple[SampleStart | None, tuple[Turn, ...]]:
    """Record 0 and the turns behind it. Raises CorruptRecord when a journal is not built so."""
    if not records:
        return None, ()
    start, turns = records[0], records[1:]
    if not isinstance(start, SampleStart) or not all(isinstance(turn, Turn) for turn in turns):
        raise CorruptRecord(f"the journal of sample {sample} is not a start and turns")
    return start, tuple(turn for turn in turns if isinstance(turn, Turn))
