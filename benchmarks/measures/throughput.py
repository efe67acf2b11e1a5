"""Finished samples, put by one process and taken by another: every contender in turn, round after round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from contenders.contender import Contender
from contenders.payload import BYTES_PER_TOKEN
from contenders.process import Remote, cpu_seconds
from rich.table import Table

from measures.bars import Bar, ratios

STEP = 32
"""Counts are multiples of this: a step of ours, a batch of TransferQueue's."""

BARS = {
    2048: {"tq-1": 30.0, "tq-8": 8.0},
    32768: {"tq-1": 6.0, "tq-8": 3.5, "stream": 5.0, "mp-lists": 4.0, "ray": 7.0},
    131072: {"tq-1": 2.5},
}
"""How many times as many samples a second we must move, by tokens a sample."""


class Round(NamedTuple):
    """One contender's round: samples a second, and CPU seconds of every process for a thousand samples."""

    rate: float
    cpu: float


@dataclass
class Runner:
    """One contender with its two processes, and which numbers it has put."""

    contender: Contender
    producer: Remote = field(init=False)
    consumer: Remote = field(init=False)
    put: int = 0

    def __post_init__(self) -> None:
        self.consumer = Remote(self.contender.consumer())
        self.producer = Remote(self.contender.producer())

    def round(self, tokens: int, count: int) -> Round:
        """Moves `count` samples and checks that each came once."""
        brokers = self.contender.brokers()
        broker_cpu, began = cpu_seconds(brokers), time.monotonic()
        self.consumer.begin("take", tokens, count)
        self.producer.begin("put", tokens, self.put, count)
        reports = [self.producer.result(), self.consumer.result()]
        seconds = max(report.ended for report in reports) - began
        cpu = sum(report.cpu for report in reports) + cpu_seconds(brokers) - broker_cpu
        if sorted(reports[1].answer) != list(range(self.put, self.put + count)):
            raise RuntimeError(f"{self.contender.name} did not give every sample once")
        self.put += count
        return Round(count / seconds, 1000 * cpu / count)

    def close(self) -> None:
        """Ends the two processes."""
        self.producer.kill()
        self.consumer.kill()


def measure(
    runners: dict[str, Runner], sizes: Sequence[int], rounds: int, seconds: float
) -> dict[int, dict[str, list[Round]]]:
    """For each size, `rounds` rounds of about `seconds` of each contender."""
    for runner in runners.values():
        runner.consumer.wait_ready()
        runner.producer.wait_ready()
    results: dict[int, dict[str, list[Round]]] = {}
    for tokens in sizes:
        counts = {name: _count(runner, tokens, seconds) for name, runner in runners.items()}
        results[tokens] = {name: [] for name in runners}
        for _ in range(rounds):
            for name, runner in runners.items():
                results[tokens][name].append(runner.round(tokens, counts[name]))
    return results


def bars(results: dict[int, dict[str, list[Round]]]) -> list[Bar]:
    """The claims about samples a second."""
    made = []
    for tokens, rates in results.items():
        for name, least in BARS.get(tokens, {}).items():
            if name in rates and "ours" in rates:
                paired = ratios([r.rate for r in rates["ours"]], [r.rate for r in rates[name]])
                made.append(Bar(f"{tokens // 1024}k samples/s, ours / {name}", paired, least))
            if name in rates and "plain" in rates:  # what no buffer in Redis can exceed
                paired = ratios([r.rate for r in rates["plain"]], [r.rate for r in rates[name]])
                made.append(Bar(f"{tokens // 1024}k samples/s, SET and GET / {name}", paired))
    return made


def table(tokens: int, rounds: dict[str, list[Round]], names: dict[str, str]) -> Table:
    """Medians of one size."""
    shown = Table(
        "contender", "samples/s", "MB/s", "CPU s / 1000", "of bare", "ours is",
        title=f"Finished samples of {tokens // 1024}k tokens",
    )  # fmt: skip
    for name, measured in rounds.items():
        rates = [one.rate for one in measured]
        rate = statistics.median(rates)
        against = [
            f"{statistics.median(ratios(rates, [r.rate for r in rounds['bare']])):.2f}" if "bare" in rounds else "",
            f"{statistics.median(ratios([r.rate for r in rounds['ours']], rates)):.1f}x" if "ours" in rounds else "",
        ]
        cpu = statistics.median(one.cpu for one in measured)
        megabytes = rate * tokens * BYTES_PER_TOKEN / 1e6
        shown.add_row(names[name], f"{rate:,.0f}", f"{megabytes:,.0f}", f"{cpu:.2f}", *against)
    return shown


def _count(runner: Runner, tokens: int, seconds: float) -> int:
    """How many samples last about `seconds`, after a round that is not counted."""
    runner.producer.call("warm", tokens)
    runner.round(tokens, STEP)
    rate = runner.round(tokens, STEP).rate
    return max(STEP, round(rate * seconds / STEP) * STEP)
