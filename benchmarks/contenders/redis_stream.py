"""A Redis stream of pickled lists with a consumer group: what is written first when a queue must survive."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial

from redis import Redis

from contenders.over_valkey import OverValkey
from contenders.payload import Pool

STREAM, GROUP = "samples", "trainer"
IN_FLIGHT = 32
BATCH = 32


class Producer:
    """XADD, pipelined like our commits."""

    def __init__(self, url: str, seed: int) -> None:
        self._redis = Redis.from_url(url)
        self._pool = Pool(seed)

    def warm(self, tokens: int) -> None:
        """Makes the lists."""
        self._pool.of("lists", tokens)

    def put(self, tokens: int, first: int, count: int) -> None:
        """One entry a sample."""
        samples = self._pool.of("lists", tokens)
        for start in range(first, first + count, IN_FLIGHT):
            pipe = self._redis.pipeline(transaction=False)
            for number in range(start, min(start + IN_FLIGHT, first + count)):
                pipe.xadd(STREAM, {"sample": pickle.dumps((number, samples[number % len(samples)]))})
            pipe.execute()


class Consumer:
    """XREADGROUP; a settled sample is acknowledged and deleted."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url)

    def take(self, tokens: int, count: int, settle: bool = True) -> list[int]:
        """New entries."""
        taken: list[int] = []
        while len(taken) < count:
            taken += self._read(">", min(BATCH, count - len(taken)), 1000, settle)
        return taken

    def recover(self, tokens: int, count: int, patience: float) -> list[int]:
        """The entries of the dead consumer, which had the same name, then new ones."""
        taken: list[int] = []
        while entries := self._read("0", BATCH, None, True):
            taken += entries
        while entries := self._read(">", BATCH, round(1000 * patience), True):
            taken += entries
        return taken

    def _read(self, start: str, count: int, block: int | None, settle: bool) -> list[int]:
        found = self._redis.xreadgroup(GROUP, "consumer", {STREAM: start}, count=count, block=block)
        entries = found[0][1] if found else []
        numbers = [pickle.loads(fields[b"sample"])[0] for _, fields in entries]
        if settle and entries:
            ids = [entry for entry, _ in entries]
            pipe = self._redis.pipeline(transaction=False)
            pipe.xack(STREAM, GROUP, *ids)
            pipe.xdel(STREAM, *ids)
            pipe.execute()
        return numbers


class RedisStream(OverValkey):
    """The stream over the same embedded Valkey, with the same durability."""

    name = "Redis stream of pickles"

    def producer(self) -> Callable[[], Producer]:
        return partial(Producer, self.server.url, self.seed)

    def consumer(self) -> Callable[[], Consumer]:
        return partial(Consumer, self.server.url)

    def __enter__(self) -> RedisStream:
        self.server.start()
        Redis.from_url(self.server.url).xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        return self
