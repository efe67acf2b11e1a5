"""What the way of interrupting running generations at a weight update costs: in tokens, in seconds, in exactness.

A real SGLang server on CPU generates, without pause, many sequences of a tiny model at once, short or long ones, while
new weights are published every few seconds. Rounds of the policies follow one another. One server plays them all: on
CPU they ask for the same flags.

    python benchmarks/interruption.py --json FILE     three rounds, ten minutes
    python benchmarks/interruption.py --quick         one round, shorter long contexts: nothing is judged
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

import torch
from interruptions.checkpoints import Checkpoints
from interruptions.figures import Figures, bars_of, figures_of, medians, table
from interruptions.load import Context
from interruptions.playing import NONE, POLICIES, Engine, play
from measures import bars, command_line
from rich.console import Console
from transformers.utils import logging

from stream_rl.config import Config
from stream_rl.engine.server import EngineServer
from stream_rl.sample import WeightVersion

SHORT = Context("short", prompt=(16, 32), generated=(16, 48), live=64)
LONG = Context("long", prompt=(1000, 2000), generated=(256, 512), live=16)
QUICK_LONG = Context("long", prompt=(300, 500), generated=(64, 128), live=16)

Results = dict[str, dict[str, list[Figures]]]
"""By context and policy, a round each."""


def served(model: Path, folder: Path, seed: int) -> EngineServer:
    """A server as a run on CPU would start it."""
    config = Config.parse(
        {
            "run": str(folder),
            "seed": seed,
            "model": {"path": str(model)},
            "environment": {"path": "guess_number"},
            "engine": {"device": "cpu"},
        }
    )
    return EngineServer.from_config(config, 0, log_path=folder / "engine-0.log")


async def measure(url: str, checkpoints: Checkpoints, args: argparse.Namespace) -> Results:
    """Each round plays every policy in every context, and begins with another policy than the last."""
    contexts = [one for one in (SHORT, QUICK_LONG if args.quick else LONG) if one.name in args.contexts]
    results: Results = {context.name: {policy: [] for policy in args.policies} for context in contexts}
    pace = {"updates": args.updates, "interval": args.interval}
    async with Engine(url, checkpoints) as engine:
        for context in contexts:  # not counted: an engine is slow at first
            await play(engine, "retract", context, updates=1, interval=0.5, seed=args.seed)
        for number in range(args.rounds):
            first = number % len(args.policies)
            for context in contexts:
                for policy in [*args.policies[first:], *args.policies[:first]]:
                    played = await play(engine, policy, context, seed=args.seed + number + 1, **pace)
                    results[context.name][policy].append(figures_of(played, policy, checkpoints))
    return results


def _arguments() -> argparse.Namespace:
    parser = command_line.parser(__doc__, quick="one round with one update", seed="of weights, prompts and lengths")
    parser.add_argument("--contexts", nargs="+", choices=["short", "long"], default=["short", "long"], metavar="NAME")
    parser.add_argument(
        "--policies", nargs="+", choices=POLICIES, default=POLICIES, metavar="NAME", help=", ".join(POLICIES)
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--updates", type=int, metavar="N", help="of a round")
    parser.add_argument("--interval", type=float, metavar="S", help="seconds from one update's start to the next's")
    args = command_line.settled(
        parser.parse_args(),
        usual={"rounds": 3, "updates": 3, "interval": 4.0},
        quick={"rounds": 1, "updates": 1, "interval": 0.5},
    )
    args.policies = [policy for policy in POLICIES if policy == NONE or policy in args.policies]
    return args


def main() -> None:
    """Reads the command line, measures, prints."""
    args = _arguments()
    torch.set_num_threads(1)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoints = Checkpoints(folder, args.seed)
        server = served(checkpoints.folder(WeightVersion(0)), folder, args.seed)
        server.start()
        try:
            server.wait_ready()
            results = asyncio.run(measure(server.url, checkpoints, args))
        finally:
            server.stop()
    console = Console(width=120, highlight=False)
    for context, rounds in results.items():
        console.print(table(context, rounds))
    held = bars_of(results)
    if not args.quick:
        console.print(bars.table(held))
    rows = {context: {name: medians(rounds, name) for name in rounds} for context, rounds in results.items()}
    command_line.write(args.json, {"contexts": results, "medians": rows, "bars": bars.as_json(held)})


if __name__ == "__main__":
    main()
