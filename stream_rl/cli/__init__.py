"""The command line: `stream-rl train | status | report | make-model | settings | metrics`.

What a user did wrong ends with exit code 2 and one line that names the setting and the fix; any other failure of ours
that has a name ends with exit code 1 and that name. Only our own mistakes show a traceback. Whatever is slow to import
is imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys

import typer

from stream_rl.cli import make_model, metrics, report, settings, status, train
from stream_rl.errors import StreamRLError, UserError

__all__ = ["main"]

app = typer.Typer(
    name="stream-rl",
    help="Asynchronous reinforcement learning for multi-turn agents, with every turn durable.",
    epilog="First: stream-rl make-model tiny-text models/tiny-text. Then: stream-rl train examples/guess_number.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("train", epilog=train.EXAMPLES)(train.train)
app.command("status", epilog=status.EXAMPLES)(status.status)
app.command("report", epilog=report.EXAMPLES)(report.report)
app.command("make-model", epilog=make_model.EXAMPLES)(make_model.make_model)
app.command("settings")(settings.settings)
app.command("metrics")(metrics.metrics)


def main() -> None:
    """Runs the command that sys.argv names and exits."""
    # As `python -m` does: an environment may be a module of the folder that the command is given in.
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        app()
    except UserError as error:
        _exit(2, str(error))
    except StreamRLError as error:
        _exit(1, f"{type(error).__name__}: {error}")


def _exit(code: int, message: str) -> None:
    sys.stderr.write(f"stream-rl: error: {' '.join(message.split())}\n")
    sys.exit(code)
