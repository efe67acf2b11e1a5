"""Reads journals back, in pieces of bounded size: other calls on the same Redis never wait behind a large answer.

What they hold becomes samples again here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from stream_rl.buffer import codec
from stream_rl.buffer.connection import Connection
from stream_rl.buffer.records import Record, SampleStart
from stream_rl.errors import CorruptRecord, RecordsLost
from stream_rl.sample import Sample, SampleId, Status, StopReason, Turn

__all__ = ["CHUNK_BYTES", "Stored", "Totals", "bounded", "chunks", "read_journals", "sample_of", "siblings", "split"]

CHUNK_BYTES = 8 * 2**20

T = TypeVar("T")


class Totals(NamedTuple):
    """What a journal holds: records, their bytes, complete turns, response tokens, generated ones."""

    records: int = 0
    size: int = 0
    turns: int = 0
    response_length: int = 0
    generated: int = 0

    @classmethod
    def parse(cls, text: bytes | None) -> Totals:
        """The `totals` of a sample's hash, which has none while the journal is empty."""
        return cls(*map(int, text.split())) if text else cls()


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


class Blob(NamedTuple):
    """A large record, as its sample's journal names it: `@<nonce>:<position>:<fingerprint>:<bytes>`."""

    sample: str
    named: bytes
    key: str
    size: int

    @classmethod
    def parse(cls, sample: str, named: bytes) -> Blob:
        """What a journal's entry says. Raises CorruptRecord."""
        name, _, size = named[1:].decode(errors="replace").rpartition(":")
        if not size.isdecimal():
            raise CorruptRecord(f"the journal of sample {sample} has an entry {named[:80]!r}")
        return cls(sample, named, f"{sample}:{name}", int(size))


async def read_journals(connection: Connection, stored: Sequence[Stored]) -> dict[str, list[Record]]:
    """Every record of each journal, decoded, keyed by sample. Raises RecordsLost, CorruptRecord."""
    journals: dict[str, list[Record]] = {entry.sample: [] for entry in stored}
    for pieces in chunks(stored):
        listed = await connection.read(
            [("LRANGE", connection.key("journal", piece.sample), piece.start, piece.stop) for piece in pieces]
        )
        named = [(piece.sample, r) for piece, records in zip(pieces, listed, strict=True) for r in records]
        blobs = await _read_blobs(connection, [Blob.parse(*entry) for entry in named if entry[1].startswith(b"@")])
        for sample, record in named:
            journals[sample].append(codec.decode(blobs[sample, record] if record.startswith(b"@") else record))
    return journals


async def _read_blobs(connection: Connection, blobs: Sequence[Blob]) -> dict[tuple[str, bytes], bytes | memoryview]:
    """The records that stand beside their journals, keyed by sample and what the journal has in their place."""
    found: dict[tuple[str, bytes], bytes | memoryview] = {}
    for some in bounded(blobs, lambda blob: blob.size):
        records = await connection.read([("GET", connection.key("blob", blob.key)) for blob in some], plain=True)
        for blob, record in zip(some, records, strict=True):
            if record is None or len(record) != blob.size:
                raise RecordsLost(f"the journal of sample {blob.sample} names {blob.key}, which is not there")
            found[blob.sample, blob.named] = record
    return found


def chunks(stored: Iterable[Stored]) -> Iterator[list[Piece]]:
    """Groups the journals' pieces so that each list is about CHUNK_BYTES at most."""
    return bounded((piece for entry in stored for piece in _pieces(entry)), lambda piece: piece.size)


def bounded(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Lists of together at most CHUNK_BYTES, or of one larger item."""
    some: list[T] = []
    total = 0
    for item in items:
        if some and total + size(item) > CHUNK_BYTES:
            yield some
            some, total = [], 0
        some.append(item)
        total += size(item)
    if some:
        yield some


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


def sample_of(
    sample_id: SampleId, records: Sequence[Record], *, status: Status, stop_reason: StopReason | None,
    reward: float | None,
) -> Sample | None:  # fmt: skip
    """The sample that a journal holds, None for an empty journal. Raises CorruptRecord."""
    name = str(sample_id)
    start, turns = split(name, records)
    if start is None:
        return None
    sample = Sample(
        sample_id.group, sample_id.index, start.prompt, start.prompt_tokens, attempt=sample_id.attempt,
        label=start.label, metadata=start.metadata, temperature=start.temperature, sampling_seed=start.sampling_seed,
        session_id=name, prompt_images=start.images, prompt_image_tokens=start.image_tokens, reward=reward,
        status=status, stop_reason=stop_reason,
    )  # fmt: skip
    try:
        for turn in turns:
            sample.append(turn)
    except ValueError as error:
        raise CorruptRecord(f"sample {name}: {error}") from error
    return sample


def siblings(group: int, fields: Mapping[bytes, bytes]) -> list[SampleId]:
    """A group's siblings in order, each by its newest attempt, as the group's hash has them."""
    attempts = sorted(
        (int(name.partition(b":")[2]), int(value)) for name, value in fields.items() if name.startswith(b"attempt:")
    )
    return [SampleId(group, index, attempt) for index, attempt in attempts]
