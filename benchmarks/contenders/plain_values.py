"""A value of our records' bytes for each sample, by SET and GET: what is left when a buffer in Redis does nothing else.

No lease, fence, group, ledger or check, and the bytes are made beforehand: a floor for what any such buffer costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from redis import Redis

from contenders.over_valkey import OverValkey
from contenders.payload import Pool
from stream_rl.buffer import codec

BATCH = 32
POLL_SECONDS = 0.004


class Producer:
    """SETs, pipelined like our commits."""

    def __init__(self, url: str, seed: int) -> None:
        self._redis = Redis.from_url(url)
        self._pool = Pool(seed)
        self._encoded: dict[int, list[bytes]] = {}

    def warm(self, tokens: int) -> None:
        """Makes the bytes."""
        journals = self._pool.of("journal", tokens)
        self._encoded[tokens] = [b"".join(map(codec.encode, records)) for records in journals]

    def put(self, tokens: int, first: int, count: int) -> None:
        """One value a sample."""
        encoded = self._encoded[tokens]
        for start in range(first, first + count, BATCH):
            pipe = self._redis.pipeline(transaction=False)
            for number in range(start, min(start + BATCH, first + count)):
                pipe.set(f"sample:{number}", encoded[number % len(encoded)])
            pipe.execute()


class Consumer:
    """GETs of the next numbers; a settled sample is unlinked."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url)
        self._next = 0

    def take(self, tokens: int, count: int, settle: bool = True) -> list[int]:
        """The next samples, as soon as they are there."""
        end, taken = self._next + count, []
        while self._next < end:
            names = [f"sample:{number}" for number in range(self._next, min(self._next + BATCH, end))]
            found = [value is not None for value in self._redis.mget(names)]
            there = found.index(False) if False in found else len(found)
            if not there:
                time.sleep(POLL_SECONDS)
            elif settle:
                self._redis.unlink(*names[:there])
            taken += range(self._next, self._next + there)
            self._next += there
        return taken

    def recover(self, tokens: int, count: int, patience: float) -> list[int]:
        """Whatever is there: nobody knows what was taken."""
        return [int(name.partition(b":")[2]) for name in self._redis.scan_iter("sample:*")]


class PlainValues(OverValkey):
    """Values in the same embedded Valkey, with the same durability."""

    name = "SET and GET of our bytes"

    def producer(self) -> Callable[[], Producer]:
        return partial(Producer, self.server.url, self.seed)

    def consumer(self) -> Callable[[], Consumer]:
        return partial(Consumer, self.server.url)

    def __enter__(self) -> PlainValues:
        self.server.start()
        return self
