"""The trainer's measures: each makes its processes, runs its rounds, and gives tables, bars and figures."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from contenders.process import CONTEXT, Remote
from measures import bars
from measures.bars import Bar
from rich.table import Table

from learners import work
from learners.memory import predicted
from learners.work import Setup, Shape, Timed
from stream_rl.sample import Group

# What takes seconds to import is imported once, and processes begin as copies of one that has it. What lies beside the
# program is not found there.
CONTEXT.set_forkserver_preload(
    ["trl.trainer.grpo_trainer", "stream_rl.consumer.loading", "transformers.models.qwen3.modeling_qwen3"]
)
SECONDS = 600.0
FASTER_THAN_TRL = 1.5
NEAR_PREDICTION = (0.8, 1.2)
ROWS = (1, 2, 4, 8)
DEFAULT_ROWS = 8
DEFAULT = "TRL, 8 rows, its default"
CHUNKS = (1 << 18, 1 << 20, 1 << 22)
LOSSES_AGREE = {"float32": 1e-4, "bfloat16": 5e-2}
SHAPES = {
    "long": Shape(64, 4, 4, 2, 16, 192, 32768),
    "small": Shape(128, 2, 4, 2, 32, 384, 4096),
    "medium": Shape(256, 4, 4, 2, 64, 768, 16384),
    "0.6b": Shape(1024, 28, 16, 8, 128, 3072, 151936),
    "4b": Shape(2560, 36, 32, 8, 128, 9728, 151936),
}
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""Dense bfloat16, by a part of the device's name."""

Rounds = dict[str, list[Timed]]


class Measured(NamedTuple):
    """What one measure found."""

    tables: list[Table]
    bars: list[Bar]
    figures: dict[str, Any]


class Measures:
    """All of them, by the names that the command line has for them."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args = args
        self._folder = folder
        self._dtype = "bfloat16" if args.device == "cuda" else "float32"

    def steps(self) -> Measured:
        """Ours, packed and padded, and TRL's: with its default number of rows, and with the one that suits it best."""
        args, shape = self._args, SHAPES[self._args.shape]
        setup = self._setup(args.shape, args.budget)
        found = Measured([], [], {})
        makers = {
            "ours, packed": partial(_ours, setup), "ours, padded": partial(_ours, setup, packing=False),
            "TRL": partial(_trl, setup),
        }  # fmt: skip
        with _processes(makers) as learners:
            for sigma in args.sigmas:
                groups = work.make_groups(
                    args.groups, median=args.median, longest=args.budget, sigma=sigma, vocabulary=shape.vocabulary,
                    seed=args.seed,
                )  # fmt: skip
                rounds = self._rounds(learners, groups)
                for name in list(rounds)[2:]:
                    least = FASTER_THAN_TRL if sigma >= 1.0 and name == DEFAULT else 0.0
                    over = _over(rounds, name, "ours, packed")
                    found.bars.append(Bar(f"sigma {sigma:g}: tokens/s, ours packed / {name}", over, least=least))
                found.tables.append(self._steps_table(sigma, groups, rounds))
                found.figures[f"sigma {sigma:g}"] = {
                    "tokens": _tokens(groups), "flops": shape.flops(groups),
                    **{name: [one._asdict() for one in times] for name, times in rounds.items()},
                }  # fmt: skip
        return found

    def heads(self) -> Measured:
        """The three ways, ours with several sizes of a chunk."""
        args, hidden = self._args, SHAPES[self._args.shape].hidden
        make = partial(_heads, args.places, hidden, args.vocabulary, args.device, args.threads)
        chunks = CHUNKS if args.device == "cpu" else tuple(chunk << 8 for chunk in CHUNKS)
        ways = [("whole", chunks[1]), ("checkpointed", chunks[1]), *(("ours", chunk) for chunk in chunks)]
        costs: dict[tuple[str, int], list[Any]] = {way: [] for way in ways}
        with _processes({"heads": make}) as processes:
            for number in range(args.rounds + 1):
                for way in ways:
                    cost = processes["heads"].call("run", *way, timeout=SECONDS).answer
                    if number:
                        costs[way].append(cost)
        title = f"{args.places:,} hidden states of {hidden} to log-probs of {args.vocabulary:,} tokens, and back"
        table = Table("logits", "numbers in a chunk", "places/s", "peak memory, MiB", title=title)
        for (way, chunk), found in costs.items():
            seconds = statistics.median(cost.seconds for cost in found)
            size = "all" if way == "whole" else f"{chunk:,}"
            table.add_row(way, size, f"{args.places / seconds:,.0f}", f"{max(c.peak for c in found) / 2**20:,.0f}")
        figures = {f"{way}, {chunk}": [cost._asdict() for cost in found] for (way, chunk), found in costs.items()}
        faster = bars.ratios(*([c.seconds for c in costs[way, chunks[1]]] for way in ("checkpointed", "ours")))
        return Measured([table], [Bar("heads: places/s, ours / checkpointed", faster)], figures)

    def long(self) -> Measured:
        """One long sample, with blocks kept and computed anew, beside the formula."""
        args, shape = self._args, SHAPES["long"]
        setup = self._setup("long", args.long)
        groups = work.make_long(args.long, shape.vocabulary, args.seed)
        trained = sum(int(sample.loss_mask.sum()) for group in groups for sample in group.samples)
        table = Table(
            "activations", "predicted, MiB", "measured, MiB", "measured / predicted", "logits whole, MiB",
            title=f"One sample of {args.long:,} tokens, {trained:,} of them trained: beside weights and optimizer",
        )  # fmt: skip
        found = Measured([table], [], {})
        for name, recompute in (("kept", False), ("computed anew", True)):
            with _processes({"ours": partial(_ours, setup, recompute=recompute, exact_peak=True)}) as processes:
                measured = _long_step(processes["ours"], groups, shape, args.seed)
            chunk = CHUNKS[1] if args.device == "cpu" else CHUNKS[1] << 8
            expected = predicted(
                shape,
                args.long,
                trained,
                dtype=self._dtype,
                recompute=recompute,
                chunk=min(chunk, trained * shape.vocabulary),
            )
            table.add_row(
                name, f"{expected / 2**20:,.0f}", f"{measured.peak / 2**20:,.0f}", f"{measured.peak / expected:.2f}",
                f"{4 * trained * shape.vocabulary / 2**20:,.0f}",
            )  # fmt: skip
            least, most = NEAR_PREDICTION
            found.bars.append(Bar(f"long, {name}: measured / predicted", [measured.peak / expected], least, most))
            found.figures[name] = {"predicted": expected, **measured._asdict()}
        return found

    def _setup(self, shape: str, tokens: int) -> Setup:
        folder = self._folder / shape
        if not folder.exists():
            with _processes({"model": partial(work.make_model, folder, SHAPES[shape], self._args.seed)}) as made:
                made["model"].wait_ready()
        return Setup(folder, SHAPES[shape], self._args.device, self._dtype, self._args.threads, tokens)

    def _rounds(self, learners: dict[str, Remote], groups: list[Group]) -> Rounds:
        for learner in learners.values():
            learner.call("give", groups)
        runs: dict[str, tuple[Remote, int]] = {name: (learners[name], 0) for name in ("ours, packed", "ours, padded")}
        runs[DEFAULT] = (learners["TRL"], DEFAULT_ROWS)
        if (best := self._fastest_rows(learners["TRL"])) != DEFAULT_ROWS:
            runs[f"TRL, {best} rows, its best"] = (learners["TRL"], best)
        warm = {name: _step(*run) for name, run in runs.items()}
        for name, one in warm.items():
            off = abs(one.loss - warm[DEFAULT].loss)
            assert off <= LOSSES_AGREE[self._dtype], f"{name} has loss {one.loss:g}, TRL {warm[DEFAULT].loss:g}"
        rounds: Rounds = {name: [] for name in runs}
        for number in range(self._args.rounds):
            order = list(runs)
            for name in order[number % len(order) :] + order[: number % len(order)]:
                rounds[name].append(_step(*runs[name]))
        return rounds

    def _fastest_rows(self, trl: Remote) -> int:
        """The number of rows with which TRL's second step is fastest."""
        rows_of = {}
        for rows in ROWS:
            _step(trl, rows)
            rows_of[_step(trl, rows).seconds] = rows
        return rows_of[min(rows_of)]

    def _steps_table(self, sigma: float, groups: list[Group], rounds: Rounds) -> Table:
        tokens, flops = _tokens(groups), SHAPES[self._args.shape].flops(groups)
        peak = _peak_flops() if self._args.device == "cuda" else None
        longest = max(len(sample.tokens) for group in groups for sample in group.samples)
        shown = Table(
            "step", "tokens/s", "of ours packed", "MFU" if peak else "useful GFLOP/s", "peak memory, MiB",
            title=f"Lengths lognormal, sigma {sigma:g}: {tokens:,} tokens of {len(groups) * work.GROUP_SIZE} samples, "
            f"the longest {longest:,}; ours in micro-batches of {self._args.budget:,}",
        )  # fmt: skip
        for name, times in rounds.items():
            seconds = statistics.median(one.seconds for one in times)
            use = f"{flops / seconds / peak:.1%}" if peak else f"{flops / seconds / 1e9:.1f}"
            share = statistics.median(_over(rounds, "ours, packed", name))
            memory = max(one.peak for one in times) / 2**20
            shown.add_row(name, f"{tokens / seconds:,.0f}", f"{share:.2f}", use, f"{memory:,.0f}")
        return shown


def _long_step(ours: Remote, groups: list[Group], shape: Shape, seed: int) -> Timed:
    """The optimizer's state is there before the step that counts."""
    ours.call("give", work.make_long(64, shape.vocabulary, seed))
    _step(ours)
    ours.call("give", groups)
    return _step(ours)


def _ours(setup: Setup, *, packing: bool = True, recompute: bool = False, exact_peak: bool = False) -> object:
    from learners.learner import return_what_is_freed
    from learners.ours import Ours

    if exact_peak:
        return_what_is_freed()
    return Ours(setup, packing=packing, recompute=recompute)


def _trl(setup: Setup) -> object:
    from learners.of_trl import Trl

    return Trl(setup)


def _heads(places: int, hidden: int, vocabulary: int, device: str, threads: int) -> object:
    from learners.heads import Heads

    return Heads(places, hidden, vocabulary, device, threads)


@contextmanager
def _processes(makers: dict[str, Any]) -> Iterator[dict[str, Remote]]:
    processes = {name: Remote(make) for name, make in makers.items()}
    try:
        yield processes
    finally:
        for process in processes.values():
            process.kill()


def _step(learner: Remote, rows: int = 0) -> Timed:
    """A step; of TRL's, with so many rows in a micro-batch."""
    if rows:
        learner.call("take", rows)
    answer = learner.call("step", timeout=SECONDS).answer
    assert isinstance(answer, Timed)
    return answer


def _tokens(groups: list[Group]) -> int:
    return sum(len(sample.tokens) for group in groups for sample in group.samples)


def _over(rounds: Rounds, base: str, name: str) -> list[float]:
    """Round by round, how many times as fast as `base` one is."""
    return bars.ratios([one.seconds for one in rounds[base]], [one.seconds for one in rounds[name]])


def _peak_flops() -> float | None:
    import torch

    name = torch.cuda.get_device_name()
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
