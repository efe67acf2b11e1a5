"""What the buffer costs and keeps, beside its peers: TransferQueue, Ray's Queue, multiprocessing.Queue, a Redis stream.

All contenders run in one interleaved run on this machine, each with a producer and a consumer process of its own; what
must survive is written with appendfsync everysec unless said. Ceilings are a bare copy of our records' bytes through a
unix socket, and for what is to survive, plain SETs and GETs, or RPUSHes, of them. Peers that are not installed are left
out, by name: see `--help`.

    python benchmarks/buffer.py                       everything, minutes
    python benchmarks/buffer.py --quick               the same, less of it, under a minute without Ray's cluster
    python benchmarks/buffer.py --only turns memory   some tables

`ours / X` is the median over rounds of the two rates' ratio in the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from contenders import line_up
from contenders.contender import Contender
from contenders.ours import Ours
from measures import bars, command_line, images, losses, memory, throughput, turns
from measures.bars import Bar
from rich.console import Console

TABLES = ("samples", "turns", "images", "losses", "memory")
SIZES = (2048, 32768, 131072)


class Benchmark:
    """One run: the tables asked for, then the bars, then the file."""

    def __init__(self, args: argparse.Namespace, folder: Path, ray_address: str) -> None:
        self._args = args
        self._folder = folder
        self._ray_address = ray_address
        self._console = Console(width=120, highlight=False)
        self._bars: list[Bar] = []
        self._figures: dict[str, Any] = {}

    def run(self) -> list[Bar]:
        """Measures and prints; returns the bars."""
        steps: dict[str, Callable[[], None]] = {
            "samples": self._samples, "turns": self._turns, "images": self._images, "losses": self._losses,
            "memory": self._memory,
        }  # fmt: skip
        for name in self._args.only:
            steps[name]()
        self._console.print(bars.table(self._bars))
        command_line.write(self._args.json, {**self._figures, "bars": bars.as_json(self._bars)})
        return self._bars

    def _make(self, name: str, part: str) -> Contender:
        folder = Path(tempfile.mkdtemp(prefix=f"{part}-", dir=self._folder))
        return line_up.contender(name, folder, self._args.seed, self._ray_address, self._args.fsync)

    def _ours(self, part: str) -> Ours:
        ours = self._make("ours", part)
        assert isinstance(ours, Ours)
        return ours

    def _samples(self) -> None:
        with ExitStack() as stack:
            contenders = {name: stack.enter_context(self._make(name, "samples")) for name in self._args.contenders}
            runners = {name: throughput.Runner(contender) for name, contender in contenders.items()}
            for runner in runners.values():
                stack.callback(runner.close)
            results = throughput.measure(runners, self._args.sizes, self._args.rounds, self._args.seconds)
        for tokens, rounds in results.items():
            self._console.print(throughput.table(tokens, rounds, {name: c.name for name, c in contenders.items()}))
        self._bars += throughput.bars(results)
        self._figures["samples"] = {
            str(tokens): {name: [one._asdict() for one in rounds] for name, rounds in by_name.items()}
            for tokens, by_name in results.items()
        }

    def _turns(self) -> None:
        with ExitStack() as stack:
            ours = stack.enter_context(self._ours("turns"))
            queue = None
            if "tq-1" in self._args.contenders:
                stack.enter_context(self._make("tq-1", "turns"))
                queue = line_up.transfer_queue_client()
            measured = asyncio.run(turns.measure(ours, self._args.rounds, self._args.seed, queue))
        self._console.print(measured.table())
        self._bars += measured.bars()
        self._figures["turns"] = {"episodes": measured.episodes, "long": measured.long, "written": measured.written}

    def _images(self) -> None:
        with self._ours("images") as ours:
            measured = asyncio.run(images.measure(ours, self._args.rounds, self._args.seed))
        self._console.print(measured.table())
        self._bars += measured.bars()
        self._figures["images"] = {
            "ours": [one._asdict() for one in measured.ours], "naive": [one._asdict() for one in measured.naive],
        }  # fmt: skip

    def _losses(self) -> None:
        left_out = {"bare", "plain", "tq-8"}
        if self._args.quick:
            left_out.add("mp-lists")  # lists are lost as bytes are
        names = [name for name in self._args.contenders if name not in left_out]
        measured = [
            losses.measure(partial(self._make, name, "losses"), self._args.samples, self._args.hang) for name in names
        ]
        self._console.print(losses.table(measured))
        for one in measured:
            if one.name == Ours.name:
                kept = min(count for count in one.obtained.values() if count is not None)
                self._bars.append(Bar("share of acknowledged samples kept, ours", [kept / one.put], 1.0))
        self._figures["losses"] = measured

    def _memory(self) -> None:
        with self._ours("memory") as ours:
            table, measured, figures = memory.measure(ours, self._args.live, self._args.seed)
        self._console.print(table)
        self._bars += measured
        self._figures["memory"] = figures


def _arguments() -> argparse.Namespace:
    parser = command_line.parser(
        __doc__, quick="short rounds, few samples, no contender on Ray",
        epilog=f"TransferQueue is installed by: {line_up.INSTALL}",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES, help="tables to make")
    parser.add_argument("--contenders", nargs="+", choices=line_up.NAMES, help="who takes part; default: all")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="tokens of a finished sample")
    parser.add_argument("--fsync", choices=("always", "everysec", "no"), default="everysec")
    parser.add_argument("--rounds", type=int, help="rounds that are counted")
    parser.add_argument("--seconds", type=float, help="of one contender's round")
    parser.add_argument("--samples", type=int, help="put before each kill; a multiple of 32")
    parser.add_argument("--live", type=int, help="samples that the producer under measure holds")
    usual = {"contenders": line_up.NAMES, "rounds": 7, "seconds": 0.6, "samples": losses.SAMPLES, "live": 1000}
    quick = {"contenders": line_up.WITHOUT_RAY, "rounds": 3, "seconds": 0.2, "samples": 32, "live": 100}
    args = command_line.settled(parser.parse_args(), usual=usual, quick=quick)
    args.hang = 3.0 if args.quick else losses.HANG
    return args


def main() -> None:
    """Reads the command line, measures, prints."""
    args = _arguments()
    for name in line_up.missing(tuple(args.contenders)):
        print(f"{name} is left out: TransferQueue is not installed ({line_up.INSTALL})")
    args.contenders = [name for name in args.contenders if name not in line_up.missing(tuple(args.contenders))]
    with tempfile.TemporaryDirectory() as folder, line_up.cluster(tuple(args.contenders)) as ray_address:
        Benchmark(args, Path(folder), ray_address).run()


if __name__ == "__main__":
    main()
