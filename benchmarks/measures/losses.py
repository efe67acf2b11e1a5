"""What is left of acknowledged samples after kill -9 of producer, consumer and broker, and what a waiting sample takes.

Each death meets a contender of its own: SAMPLES are put and acknowledged, then the victim is killed. The consumer dies
with all of them in its hands and nothing settled. A broker is killed EVERYSEC_SECONDS later, since younger writes are
not promised under everysec. A new consumer then takes whatever it can get.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from contenders.contender import Contender
from contenders.process import Lost, Remote, memory
from rich.table import Table

TOKENS, SAMPLES = 32768, 64
PATIENCE = 1.0
EVERYSEC_SECONDS = 2.0
HANG = 15.0
VICTIMS = ("producer", "broker", "consumer")


@dataclass(frozen=True, slots=True)
class Losses:
    """Samples obtained after each death, None where there is no such victim; bytes of one waiting sample."""

    name: str
    put: int
    obtained: dict[str, int | None]
    memory: int
    disk: int


def measure(make: Callable[[], Contender], samples: int, hang: float = HANG) -> Losses:
    """Starts the contender once for each victim; a consumer that hangs is given up after `hang` seconds."""
    obtained: dict[str, int | None] = {}
    stored = (0, 0)
    for victim in VICTIMS:
        with make() as contender:
            if victim == "broker" and not contender.brokers():
                obtained[victim] = None
                continue
            consumer, producer = Remote(contender.consumer()), Remote(contender.producer())
            try:
                stored = _put(contender, producer, samples)
                obtained[victim] = _after(victim, contender, producer, consumer, samples, hang=hang)
            finally:
                producer.kill()
                consumer.kill()
    return Losses(contender.name, samples, obtained, *stored)


def table(losses: list[Losses]) -> Table:
    """One row a contender."""
    shown = Table(
        "contender", "memory", "disk", *(f"kill -9 {victim}" for victim in VICTIMS),
        title=f"A waiting sample of {TOKENS // 1024}k tokens, KB in the broker, and samples still obtainable",
    )  # fmt: skip
    for one in losses:
        counts = ["-" if (n := one.obtained[victim]) is None else f"{n} of {one.put}" for victim in VICTIMS]
        shown.add_row(one.name, f"{one.memory / 1000:,.0f}", f"{one.disk / 1000:,.0f}", *counts)
    return shown


def _put(contender: Contender, producer: Remote, samples: int) -> tuple[int, int]:
    producer.call("warm", TOKENS)
    before = memory(contender.brokers()), contender.disk_bytes()
    producer.call("put", TOKENS, 0, samples)
    return (memory(contender.brokers()) - before[0]) // samples, (contender.disk_bytes() - before[1]) // samples


def _after(victim: str, contender: Contender, producer: Remote, consumer: Remote, samples: int, *, hang: float) -> int:
    try:
        if victim == "producer":
            producer.kill()
        elif victim == "consumer":
            consumer.call("take", TOKENS, samples, False)
            consumer.restart()
        else:
            time.sleep(EVERYSEC_SECONDS)
            _kill(contender.brokers())
            contender.revive()
            consumer.restart()
        return len(set(consumer.call("recover", TOKENS, samples, PATIENCE, timeout=hang).answer))
    except Lost:
        return 0


def _kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + HANG
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
