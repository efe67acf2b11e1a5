"""What lag costs in learning, with and without off-policy correction.

The same agent learns the number game again and again, from samples whose lag is held at exactly so many steps. The
updates are the trainer's; episodes are played in this process without an engine, all of a step's at once.

    python benchmarks/learning.py --runs curves      lags 0, 2, 4, 8 and three corrections: 18 runs, half an hour
    python benchmarks/learning.py --quick            a few steps of each correction: nothing is judged
    python benchmarks/learning.py --lags 2 --seeds 3 --plot lags.html
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from lags.figures import JUDGED_LAG, bars_of, curves_page, table
from lags.training import CORRECTIONS, Curve, Run, curve_of
from measures import bars, command_line
from rich.console import Console
from transformers.utils import logging


def runs_of(args: argparse.Namespace) -> list[Run]:
    """The lag that is judged comes first, with all seeds; the others with one."""
    lags = sorted(args.lags, key=lambda lag: (lag != JUDGED_LAG, lag))
    return [
        Run(lag, correction, args.seed + number, args.steps)
        for lag in lags
        for number in range(args.seeds if lag == JUDGED_LAG else 1)
        for correction in args.corrections
    ]


def _arguments() -> argparse.Namespace:
    names = list(CORRECTIONS)
    parser = command_line.parser(__doc__, quick="one lag, one seed, few steps", seed="the first one")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="keep finished runs here, and take those that are")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write reward against steps here, as HTML")
    parser.add_argument("--lags", type=int, nargs="+", metavar="N", help="steps that samples are old")
    parser.add_argument("--corrections", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--seeds", type=int, help=f"of every correction at lag {JUDGED_LAG}; elsewhere one")
    parser.add_argument("--steps", type=int, help="of every run")
    return command_line.settled(
        parser.parse_args(),
        usual={"lags": [0, 2, 4, 8], "seeds": 3, "steps": 260},
        quick={"lags": [2], "seeds": 1, "steps": 6},
    )


def main() -> None:
    """Reads the command line, trains, prints."""
    args = _arguments()
    torch.set_num_threads(1)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    console = Console(width=120, highlight=False)
    curves: list[Curve] = []
    for run in runs_of(args):
        curves.append(curve_of(run, args.runs))
        console.print(f"{run.name}: {curves[-1].seconds:.0f} s")
    console.print(table(curves))
    held = bars_of(curves)
    if not args.quick:
        console.print(bars.table(held))
    command_line.write(args.json, {"runs": curves, "bars": bars.as_json(held)})
    if args.plot is not None:
        args.plot.write_text(curves_page(curves), encoding="utf-8")


if __name__ == "__main__":
    main()
