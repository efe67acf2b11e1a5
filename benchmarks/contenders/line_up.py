"""Which contenders take part."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contenders.brokerless import BareSocket, QueueOfBytes, QueueOfLists
from contenders.contender import Contender
from contenders.on_ray import RayQueue, TransferQueue, start_ray, stop_ray
from contenders.ours import Ours
from contenders.plain_values import PlainValues
from contenders.redis_stream import RedisStream

WITHOUT_RAY = ("bare", "plain", "ours", "stream", "mp-lists", "mp-bytes")
ON_RAY = ("ray", "tq-1", "tq-8")
NAMES = (*WITHOUT_RAY, *ON_RAY)
INSTALL = "pip install --constraint constraints.txt --editable '.[benchmarks]'"


def missing(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the names whose package is not installed."""
    found = importlib.util.find_spec("transfer_queue") is not None
    return () if found else tuple(name for name in names if name.startswith("tq-"))


@contextmanager
def cluster(names: tuple[str, ...]) -> Iterator[str]:
    """A Ray cluster for those that need one; its address, or nothing."""
    if not set(names) & set(ON_RAY):
        yield ""
        return
    address = start_ray()
    try:
        yield address
    finally:
        stop_ray()


def transfer_queue_client() -> Any:
    """This process's client of the TransferQueue that runs."""
    import transfer_queue

    return transfer_queue.get_client()


def contender(name: str, folder: Path, seed: int, ray_address: str, fsync: str = "everysec") -> Contender:
    """One contender, its data in a folder of its own; not started."""
    made: dict[str, Callable[[], Contender]] = {
        "bare": lambda: BareSocket(folder, seed),
        "plain": lambda: PlainValues(folder, seed, fsync),
        "ours": lambda: Ours(folder, seed, fsync),
        "stream": lambda: RedisStream(folder, seed, fsync),
        "mp-lists": lambda: QueueOfLists(folder, seed),
        "mp-bytes": lambda: QueueOfBytes(folder, seed),
        "ray": lambda: RayQueue(folder, seed, ray_address),
        "tq-1": lambda: TransferQueue(folder, seed, ray_address, 1),
        "tq-8": lambda: TransferQueue(folder, seed, ray_address, 8),
    }
    return made[name]()
