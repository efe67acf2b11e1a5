"""Append-only JSON lines: the per-turn log, and the logs of steps and ended samples.

A record reaches the kernel in the call that appends it, as whole lines in one write(2): a process that is killed with
-9 loses nothing it appended, and files of several writers never mix within a line. Only the machine's own death or a
full disk can tear a line, and only the last one: opening the file to append cuts it off, reading leaves it out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import orjson

from stream_rl.errors import DataError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["JsonLines", "Tail", "read"]

_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
_TAIL_BYTES = 1 << 20


class JsonLines:
    """Appends records to one file, a JSON object a line; a record is a mapping or a dataclass. NaN becomes null.

    Args:
        path: the file.
        most_bytes: the size from which on the file is put aside as `<stem>.0001.jsonl` and so on; None: never.
        kept: of those put aside, how many stay; None: all.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """

    def __init__(self, path: str | Path, *, most_bytes: int | None = None, kept: int | None = None) -> None:
        self.path = Path(path)
        self._most_bytes = most_bytes
        self._kept = kept
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = _cut_torn_line(self._descriptor)

    def append(self, record: Mapping[str, Any] | DataclassInstance) -> None:
        """Adds one record."""
        self.extend((record,))

    def extend(self, records: Iterable[Mapping[str, Any] | DataclassInstance]) -> None:
        """Adds a batch of records in one write."""
        lines = memoryview(b"".join(orjson.dumps(record, option=_OPTIONS) for record in records))
        self._size += len(lines)
        while lines:
            lines = lines[os.write(self._descriptor, lines) :]
        if self._most_bytes is not None and self._size >= self._most_bytes:
            self._put_aside()

    def _put_aside(self) -> None:
        aside = sorted(self.path.parent.glob(f"{self.path.stem}.[0-9]*{self.path.suffix}"), key=_number)
        number = _number(aside[-1]) + 1 if aside else 1
        self.close()
        aside.append(self.path.rename(self.path.with_name(f"{self.path.stem}.{number:04}{self.path.suffix}")))
        for old in aside[: -self._kept] if self._kept is not None else ():
            old.unlink()
        self._open()

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Tail:
    """Follows a file that another process appends to."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._read_up_to = 0

    def new(self) -> list[dict[str, Any]]:
        """The whole records since the last call; at the first call, all that stand there."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as lines:
            lines.seek(self._read_up_to)
            whole = [line for line in lines if line.endswith(b"\n")]
        self._read_up_to += sum(map(len, whole))
        return [orjson.loads(line) for line in whole]


def read(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a file, oldest first; a file that was never written has none.

    Raises:
        DataError: a line other than a torn last one is not JSON.
    """
    path = Path(path)
    if not path.exists():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise DataError(f"{path} line {number} is not JSON, remove that line: {error}") from error
            yield record


def _number(aside: Path) -> int:
    """The number under which a log was put aside."""
    return int(aside.stem.rpartition(".")[2])


def _cut_torn_line(descriptor: int) -> int:
    """The file's size without it."""
    size = end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _TAIL_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        end = start
        if newline >= 0:
            end += newline + 1
            break
    if end < size:
        os.ftruncate(descriptor, end)
    return end
