"""What a training step costs, in time and memory.

    steps   ours, packed and padded, beside TRL's GRPO loss step on the same model, batch and precision
    heads   hidden states to log-probs and back: whole logits, chunks by autograd, and ours
    long    the memory of one long sample, beside what docs/trainer.md predicts

Everything runs in processes of its own, one after the other in every round. A step is log-probs, loss, gradients,
clipping and AdamW; all get the same groups. Ours fills micro-batches up to `--budget` tokens; TRL's are of 8 rows, its
default, and of the number of rows up to that with which it is fastest here. Before anything counts, losses must agree.

    python benchmarks/trainer.py                     on CPU, minutes
    python benchmarks/trainer.py --quick             smaller, under a minute on two cores
    python benchmarks/trainer.py --device cuda       bfloat16, with MFU
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from learners import work
from learners.measure import SHAPES, Measures
from measures import bars, command_line
from rich.console import Console


def run(args: argparse.Namespace, folder: Path) -> None:
    """Measures what is asked for, prints the tables and the bars, writes the file."""
    console = Console(width=120, highlight=False)
    measures = Measures(args, folder)
    figures: dict[str, Any] = {}
    held: list[bars.Bar] = []
    for name in args.only:
        started = time.perf_counter()
        measured = getattr(measures, name)()
        for table in measured.tables:
            console.print(table)
        console.print(f"{name}: {time.perf_counter() - started:.0f} s\n")
        held += measured.bars
        figures[name] = measured.figures
    console.print(bars.table(held))
    figures["args"] = {name: str(value) for name, value in vars(args).items()}
    command_line.write(args.json, {**figures, "bars": bars.as_json(held)})


def _arguments() -> argparse.Namespace:
    parser = command_line.parser(__doc__, quick="smaller models and batches, fewer rounds")
    parser.add_argument("--only", choices=("steps", "heads", "long"), nargs="+", default=["steps", "heads", "long"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every process")
    parser.add_argument("--rounds", type=int, help="rounds that are counted")
    parser.add_argument("--sigmas", type=float, nargs="+", default=[0.0, 1.0], help="steps: spreads of the lengths")
    parser.add_argument("--shape", choices=tuple(SHAPES), help="steps: the model's size")
    parser.add_argument("--groups", type=int, help=f"steps: groups of {work.GROUP_SIZE} samples")
    parser.add_argument("--median", type=int, help="steps: median length of a sample, prompt and response")
    parser.add_argument("--budget", type=int, help="steps: tokens that a micro-batch may hold; no sample is longer")
    parser.add_argument("--places", type=int, help="heads: hidden states")
    parser.add_argument("--vocabulary", type=int, help="heads: logits of each")
    parser.add_argument("--long", type=int, help="long: tokens of the sample")
    args = parser.parse_args()
    usual = {
        "shape": "small", "groups": 4, "median": 96, "budget": 2048, "rounds": 3, "places": 2048, "vocabulary": 32768,
        "long": 32768,
    }  # fmt: skip
    quick = {
        "shape": "small", "groups": 2, "median": 64, "budget": 1024, "rounds": 2, "places": 512, "vocabulary": 8192,
        "long": 4096,
    }  # fmt: skip
    on_cuda = {
        "shape": "0.6b", "groups": 16, "median": 1024, "budget": 32768, "rounds": 7, "places": 16384,
        "vocabulary": 151936, "long": 32768,
    }  # fmt: skip
    return command_line.settled(args, usual=on_cuda if args.device == "cuda" else usual, quick=quick)


def main() -> None:
    """Reads the command line, measures, prints."""
    args = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        run(args, Path(folder))


if __name__ == "__main__":
    main()
