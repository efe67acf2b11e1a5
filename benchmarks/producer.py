"""What a turn costs a producer: live episodes against FakeEngineServer answering at once, beside a bare client loop.

The engine and the Valkey are processes of their own, so the CPU is the producer's alone; the loop is the one that Ray
gives a producer, uvloop's. Contenders are interleaved, round by round, for each number of live samples; the table has
medians.

    python benchmarks/producer.py            1, 64 and 1,024 live samples, minutes
    python benchmarks/producer.py --quick    fewer of them, under a minute
    python benchmarks/producer.py --observability --live 1024    what metrics, turn log and traces cost of it
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
from measures import bars, command_line, episodes, observation
from measures.bars import Bar
from measures.episodes import TURNS, Figures, TimedFleet
from rich.console import Console
from rich.table import Table

from stream_rl.buffer import EmbeddedServer
from stream_rl.models import make_model
from stream_rl.producer.loading import load_rollout
from stream_rl.producer.worker import forget_garbage

CONTENDERS = ("bare", "requests", "producer")
OBSERVED = ("producer", "unobserved", "traced")
EPISODES = {1: 16, 64: 128, 256: 256, 1024: 1024}
SHARE, BEYOND_MS, GROWTH = 0.4, 0.6, 1.2
OBSERVED_COST, TRACED_COST = 1.03, 1.01

Rounds = dict[str, list[Figures]]


def serve(tokens: int, ready: Connection) -> None:
    """Runs the engine until the process is ended."""
    uvloop.run(episodes.serve(tokens, ready.send))


class Benchmark:
    """All rounds of all contenders, in one process."""

    def __init__(self, args: argparse.Namespace, folder: Path, engine_url: str, buffer_url: str) -> None:
        self._args = args
        self._folder = folder
        self._engine_url = engine_url
        self._buffer_url = buffer_url
        self._runs = itertools.count()
        self._fleet = TimedFleet(engine_url)
        make_model("tiny-text", folder / "model")
        self._rollout = load_rollout(self._settings(1, EPISODES[1]))
        forget_garbage()

    async def run(self) -> dict[int, Rounds]:
        """The figures by number of live samples."""
        try:
            await self._producer(1, episodes.SIBLINGS)
            self._fleet.between.clear()
            return {live: await self._rounds(live) for live in self._args.live}
        finally:
            await self._fleet.close()

    @property
    def growth(self) -> float:
        """Seconds between an answer and the next request, late turns to early ones, with one sample alive."""
        return episodes.growth(self._alone)

    async def _rounds(self, live: int) -> Rounds:
        count, tokens = EPISODES[live], self._args.tokens
        if self._args.observability:
            return await self._observed_rounds(live, count)
        figures: Rounds = {name: [] for name in CONTENDERS}
        asked = self._fleet.requests
        for _ in range(self._args.rounds):
            await self._fleet.refresh([("engine-0", self._engine_url)])
            figures["bare"].append(await episodes.bare(self._engine_url, asked, tokens, live, count))
            figures["requests"].append(await episodes.requests_alone(self._fleet, asked, tokens, live, count))
            figures["producer"].append(await self._producer(live, count))
        if live == 1:
            self._alone = {turn: list(seconds) for turn, seconds in self._fleet.between.items()}
        return figures

    async def _observed_rounds(self, live: int, count: int) -> Rounds:
        """The producer as it is, without metrics and turn log, and with traces; each of them first in turn."""
        figures: Rounds = {name: [] for name in OBSERVED}
        await self._fleet.refresh([("engine-0", self._engine_url)])
        for number in range(self._args.rounds):
            for name in OBSERVED[number % 3 :] + OBSERVED[: number % 3]:
                with observation.of(name) as how:
                    figures[name].append(await self._producer(live, count, **how))
        return figures

    async def _producer(self, live: int, count: int, **how: Any) -> Figures:
        rollout = episodes.of_run(self._rollout, self._settings(live, count))
        return await episodes.produced(rollout, self._buffer_url, self._fleet, count, **how)

    def _settings(self, live: int, count: int) -> Any:
        args = {"seed": self._args.seed, "prompt": self._args.prompt, "tokens": self._args.tokens}
        folder = self._folder / f"run-{next(self._runs)}"
        return episodes.settings(folder, self._folder / "model", live, count, args)


def table(figures: dict[int, Rounds]) -> Table:
    """Medians."""
    shown = Table("live", "contender", "turns/s", "CPU ms a turn", "of bare", title=f"Episodes of {TURNS} turns")
    for live, rounds in figures.items():
        rates = {name: statistics.median(one.per_second for one in each) for name, each in rounds.items()}
        base, last = next(iter(rates)), list(rates)[-1]
        for name, each in rounds.items():
            cpu = statistics.median(one.cpu_ms for one in each)
            shown.add_row(
                f"{live:,}", name, f"{rates[name]:,.0f}", f"{cpu:.3f}", f"{rates[name] / rates[base]:.2f}",
                end_section=name == last,
            )  # fmt: skip
    return shown


def claims(figures: dict[int, Rounds], growth: float) -> list[Bar]:
    """What must hold, at the largest number of live samples."""
    most = max(figures)
    rounds = figures[most]
    rates = {name: [one.per_second for one in each] for name, each in rounds.items()}
    beyond = [mine.cpu_ms - asked.cpu_ms for mine, asked in zip(rounds["producer"], rounds["requests"], strict=True)]
    return [
        Bar(f"{most:,} live: turns/s, producer / bare", bars.ratios(rates["producer"], rates["bare"]), SHARE),
        Bar(f"{most:,} live: CPU ms a turn beyond the request", beyond, most=BEYOND_MS),
        Bar("between answer and request: last turns / first turns", [growth], most=GROWTH),
    ]


def observed_claims(figures: dict[int, Rounds]) -> list[Bar]:
    """What observability may cost, in a producer's CPU, at the largest number of live samples."""
    most = max(figures)
    cpu = {name: [one.cpu_ms for one in each] for name, each in figures[most].items()}
    return [
        Bar(f"{most:,} live: CPU, metrics and turn log / neither", bars.ratios(cpu["producer"], cpu["unobserved"]),
            most=OBSERVED_COST),
        Bar(f"{most:,} live: CPU, traces of 1 % / none", bars.ratios(cpu["traced"], cpu["producer"]), most=TRACED_COST),
    ]  # fmt: skip


def measure(args: argparse.Namespace) -> tuple[dict[int, Rounds], float]:
    """Starts what is needed, and measures."""
    here, there = multiprocessing.Pipe()
    engine = multiprocessing.get_context("spawn").Process(target=serve, args=(args.tokens, there), daemon=True)
    engine.start()
    if not here.poll(60):
        raise TimeoutError("the fake engine did not start within 60 s")
    try:
        with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder) / "valkey") as valkey:
            benchmark = Benchmark(args, Path(folder), here.recv(), valkey.url)
            return uvloop.run(benchmark.run()), 0.0 if args.observability else benchmark.growth
    finally:
        engine.terminate()
        engine.join(10)


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = command_line.parser(__doc__, quick="one round of 1, 64 and 256 live samples")
    parser.add_argument("--observability", action="store_true", help="what metrics, turn log and traces cost")
    parser.add_argument("--live", type=int, nargs="+", choices=list(EPISODES), help="numbers of live samples")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--prompt", type=int, default=256, help="prompt words")
    parser.add_argument("--tokens", type=int, default=32, help="generated tokens a turn")
    args = parser.parse_args()
    alone = set() if args.observability else {1}  # for the growth of turns
    args.live = sorted(alone | set(args.live or ((64, 256) if args.quick else (64, 1024))))
    args.rounds = args.rounds or (1 if args.quick else 3)
    figures, growth = measure(args)
    held = observed_claims(figures) if args.observability else claims(figures, growth)
    console = Console(width=120)
    console.print(table(figures))
    console.print(bars.table(held))
    rounds = {str(live): {name: [f._asdict() for f in each] for name, each in by_name.items()}
              for live, by_name in figures.items()}  # fmt: skip
    command_line.write(args.json, {**rounds, "bars": bars.as_json(held)})


if __name__ == "__main__":
    main()
