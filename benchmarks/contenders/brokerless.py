"""Nothing between the two processes: the bare socket that is everyone's ceiling, and Python's own queue."""

from __future__ import annotations

import queue
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from contenders.contender import Contender
from contenders.payload import Pool
from contenders.process import CONTEXT
from stream_rl.buffer import codec

HEADER = struct.Struct("<QQ")
ACCEPT_SECONDS = 30.0


class SocketProducer:
    """Writes our own records' bytes into a unix socket."""

    def __init__(self, path: str, seed: int) -> None:
        self._path = path
        self._pool = Pool(seed)
        self._socket: socket.socket | None = None
        self._records: dict[int, list[bytes]] = {}

    def warm(self, tokens: int) -> None:
        """Encodes the samples."""
        if tokens not in self._records:
            journals = self._pool.of("journal", tokens)
            self._records[tokens] = [b"".join(codec.encode(record) for record in journal) for journal in journals]

    def put(self, tokens: int, first: int, count: int) -> None:
        """A number, a length, the bytes."""
        self.warm(tokens)
        samples = self._records[tokens]
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(self._path)
        for number in range(first, first + count):
            data = samples[number % len(samples)]
            self._socket.sendall(HEADER.pack(number, len(data)))
            self._socket.sendall(data)


class SocketConsumer:
    """Reads them into memory of their own."""

    def __init__(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._listener.settimeout(ACCEPT_SECONDS)
        self._socket: socket.socket | None = None

    def take(self, tokens: int, count: int, settle: bool = True) -> list[int]:
        """Each sample into a buffer of its own."""
        if self._socket is None:
            self._socket, _ = self._listener.accept()
        return [self._one(self._socket) for _ in range(count)]

    def recover(self, tokens: int, count: int, patience: float) -> list[int]:
        """A new socket has nothing."""
        return []

    def _one(self, connection: socket.socket) -> int:
        number, size = HEADER.unpack(_exactly(connection, HEADER.size))
        _exactly(connection, size)
        return int(number)


class BareSocket(Contender):
    """A copy of the bytes of our records, and nothing else."""

    name = "bare unix socket"

    def producer(self) -> Callable[[], SocketProducer]:
        return partial(SocketProducer, str(self.folder / "bare"), self.seed)

    def consumer(self) -> Callable[[], SocketConsumer]:
        self.folder.mkdir(parents=True, exist_ok=True)
        return partial(SocketConsumer, str(self.folder / "bare"))


class QueueProducer:
    """multiprocessing.Queue.put of samples in one form."""

    def __init__(self, items: Any, form: str, seed: int) -> None:
        self._items = items
        self._form = form
        self._pool = Pool(seed)

    def warm(self, tokens: int) -> None:
        """Makes the samples."""
        self._pool.of(self._form, tokens)

    def put(self, tokens: int, first: int, count: int) -> None:
        """Hands the samples to the queue's own thread: that is all the acknowledgement it gives."""
        samples = self._pool.of(self._form, tokens)
        for number in range(first, first + count):
            self._items.put((number, samples[number % len(samples)]))


class QueueConsumer:
    """multiprocessing.Queue.get."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def take(self, tokens: int, count: int, settle: bool = True) -> list[int]:
        """One by one."""
        return [self._items.get()[0] for _ in range(count)]

    def recover(self, tokens: int, count: int, patience: float) -> list[int]:
        """Whatever is still in the pipe."""
        taken: list[int] = []
        end = time.monotonic() + patience
        while len(taken) < count and time.monotonic() < end:
            try:
                taken.append(self._items.get(timeout=patience)[0])
            except queue.Empty:
                break
        return taken


class QueueOfLists(Contender):
    """multiprocessing.Queue of lists of numbers, pickled as it does by itself."""

    name = "multiprocessing.Queue of lists"
    form = "lists"

    def __init__(self, folder: Path, seed: int, fsync: str = "everysec") -> None:
        super().__init__(folder, seed, fsync)
        self._items = CONTEXT.Queue()

    def producer(self) -> Callable[[], QueueProducer]:
        return partial(QueueProducer, self._items, self.form, self.seed)

    def consumer(self) -> Callable[[], QueueConsumer]:
        return partial(QueueConsumer, self._items)


class QueueOfBytes(QueueOfLists):
    """multiprocessing.Queue of raw bytes: the fast queue without a broker, which keeps nothing."""

    name = "multiprocessing.Queue of bytes"
    form = "raw"


def _exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise ConnectionError("the producer closed the socket")
        view = view[got:]
    return data
