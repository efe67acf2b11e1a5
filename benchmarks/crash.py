"""Kills producers, the trainer and the Redis server with -9 while a pipeline runs, and counts what was lost.

A real producer loop on a FakeEngineServer, a plain trainer and the embedded Valkey run at full speed; at random moments
of work one of them dies and is started again, as a supervisor would. At the end the run trains every group that it has
begun, and the producers' own logs of acknowledged turns are compared with what was trained: `crashes/account.py`.

    python benchmarks/crash.py                 100 deaths of every kind in turn
    python benchmarks/crash.py --quick         one of each, under a minute
    python benchmarks/crash.py --kinds 'redis, everysec, power cut' --deaths 3

Promised: nothing is lost and nothing trained twice when a producer or the trainer dies, and when Redis dies under
appendfsync always. Under everysec a server that is killed loses what it had not handed to the kernel yet, which is
nothing unless its disk stalls, and up to two seconds then; a power cut loses what no fsync had reached, a second as a
rule and two at most. Turns that a living producer still has are sent again: less is lost than Redis lost. "Power cut"
is played by taking the last second of the append-only file from the dead server, or a little more where the machine is
too busy to watch the file ("cut"): then as much more may be lost. Nothing is ever trained twice.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from crashes.account import Account
from crashes.run import KINDS, Kind, Run
from measures import command_line
from rich.console import Console
from rich.table import Table

from stream_rl.models import make_model

PROMISED_SECONDS = 2.0


def kept(kind: Kind, account: Account) -> bool:
    """Whether the run kept what is promised for its kind."""
    bound = max(PROMISED_SECONDS, account.cut + 1.0) if kind.victim == "redis" and kind.fsync == "everysec" else 0.0
    return account.twice == account.changed == account.given_up == 0 and account.oldest_lost <= bound


def table(accounts: dict[Kind, Account], seconds: dict[Kind, float]) -> Table:
    """One row a kind of death."""
    shown = Table(
        "kill -9 of", "deaths", "turns committed", "lost", "oldest lost", "cut", "again", "steps", "replayed",
        "trained twice", "seconds", "promise kept",
    )  # fmt: skip
    for kind, one in accounts.items():
        oldest = f"{one.oldest_lost:.2f} s" if one.lost else "-"
        cut = f"{one.cut:.2f} s" if one.cut else "-"
        twice = one.twice + one.changed
        figures = (one.deaths, one.committed, one.lost, oldest, cut, one.again, one.steps, one.replayed, twice)
        answer = "yes" if kept(kind, one) else "NO"
        shown.add_row(kind.name, *(str(figure) for figure in figures), f"{seconds[kind]:.0f}", answer)
    return shown


def _arguments() -> argparse.Namespace:
    about = {"quick": "one death of each kind", "seed": "of the moments, the victims and the guesses"}
    parser = command_line.parser(__doc__, **about)
    parser.add_argument("--deaths", type=int, help="altogether; default 100")
    parser.add_argument("--kinds", nargs="+", choices=[kind.name for kind in KINDS], help="default: all")
    args = parser.parse_args()
    args.kinds = [kind for kind in KINDS if not args.kinds or kind.name in args.kinds]
    args.deaths = args.deaths or (len(args.kinds) if args.quick else 100)
    return args


def main() -> None:
    """Reads the command line, kills, prints."""
    args = _arguments()
    accounts: dict[Kind, Account] = {}
    seconds: dict[Kind, float] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            make_model("tiny-text", model)
            for number, kind in enumerate(args.kinds):
                began = time.monotonic()
                share = args.deaths // len(args.kinds) + (number < args.deaths % len(args.kinds))
                with Run(kind, Path(folder) / f"kind-{number}", model, args.seed) as run:
                    accounts[kind] = run.meet(share)
                seconds[kind] = time.monotonic() - began
    finally:
        Console(width=140).print(table(accounts, seconds))
    figures = {kind.name: {**asdict(one), "kept": kept(kind, one)} for kind, one in accounts.items()}
    command_line.write(args.json, figures)


if __name__ == "__main__":
    main()
