"""What every contender is: perhaps a broker, and a producer and a consumer that are made in processes of their own.

    producer process ── put ──► broker or nothing ── take ──► consumer process

A producer's `put` returns when the contender has acknowledged every sample, a consumer's `take` when it holds them,
each in the form that the contender itself works with: lists stay lists, tensors tensors, nobody pays for a conversion.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Producer(Protocol):
    """Lives in the producer's process."""

    def warm(self, tokens: int) -> None:
        """Makes the samples that will be put."""

    def put(self, tokens: int, first: int, count: int) -> None:
        """Puts the samples numbered from `first`; returns when all are acknowledged."""


class Consumer(Protocol):
    """Lives in the consumer's process."""

    def take(self, tokens: int, count: int, settle: bool = True) -> list[int]:
        """Takes `count` samples; returns their numbers. With `settle` it is done with them for good."""

    def recover(self, tokens: int, count: int, patience: float) -> list[int]:
        """The numbers of whatever a consumer can still get after a death, until none came for `patience` seconds."""


class Contender:
    """A way from producer to consumer. A context manager: the broker runs inside."""

    name: str

    def __init__(self, folder: Path, seed: int, fsync: str = "everysec") -> None:
        self.folder = folder
        self.seed = seed
        self.fsync = fsync

    def producer(self) -> Callable[[], Producer]:
        """Builds the producer in its process."""
        raise NotImplementedError

    def consumer(self) -> Callable[[], Consumer]:
        """Builds the consumer in its process."""
        raise NotImplementedError

    def brokers(self) -> list[int]:
        """The broker's process ids; none for a contender without one."""
        return []

    def revive(self) -> None:
        """Brings the broker back after its death, as whoever runs it would."""

    def disk_bytes(self) -> int:
        """What the contender has on disk now."""
        return 0

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *_: object) -> None:
        return None
