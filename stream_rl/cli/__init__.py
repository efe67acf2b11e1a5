"""The command line, one file a command: `stream-rl --help` lists them.

What a user did wrong ends with exit code 2 and one line that names the setting and the fix; any other failure of ours
that has a name ends with exit code 1 and that name. Only our own mistakes show a traceback. Whatever is slow to import
is imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from stream_rl.cli import (
    buffer,
    dead_letters,
    export,
    inspect,
    make_model,
    metrics,
    metrics_sd,
    purge,
    report,
    settings,
    simulate,
    status,
    sweep,
    train,
    turns,
)
from stream_rl.cli import set as live_set
from stream_rl.errors import StreamRLError, UserError

__all__ = ["main"]

RUN, LOOK, REPAIR, REFERENCE = "Run", "Look at a run", "Look after a run", "Reference"
TUNE = "Find good settings"

app = typer.Typer(
    name="stream-rl",
    help="Asynchronous reinforcement learning for multi-turn agents, with every turn durable.",
    epilog="First: stream-rl make-model tiny-text models/tiny-text. Then: stream-rl train examples/guess_number.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(version("stream_rl"))
        raise typer.Exit


@app.callback()
def _program(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None: ...


app.command("train", epilog=train.EXAMPLES, rich_help_panel=RUN)(train.train)
app.command("make-model", epilog=make_model.EXAMPLES, rich_help_panel=RUN)(make_model.make_model)
app.add_typer(buffer.app, name="buffer", rich_help_panel=RUN)
app.command("simulate", epilog=simulate.EXAMPLES, rich_help_panel=TUNE)(simulate.simulate)
app.command("sweep", epilog=sweep.EXAMPLES, rich_help_panel=TUNE)(sweep.sweep)
app.command("set", epilog=live_set.EXAMPLES, rich_help_panel=RUN)(live_set.set_live)
app.command("status", epilog=status.EXAMPLES, rich_help_panel=LOOK)(status.status)
app.command("report", epilog=report.EXAMPLES, rich_help_panel=LOOK)(report.report)
app.command("turns", epilog=turns.EXAMPLES, rich_help_panel=LOOK)(turns.turns)
app.command("inspect", epilog=inspect.EXAMPLES, rich_help_panel=LOOK)(inspect.inspect)
app.command("export", epilog=export.EXAMPLES, rich_help_panel=LOOK)(export.export)
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel=REPAIR)
app.command("purge", epilog=purge.EXAMPLES, rich_help_panel=REPAIR)(purge.purge)
app.command("settings", epilog=settings.EXAMPLES, rich_help_panel=REFERENCE)(settings.settings)
app.command("metrics", epilog=metrics.EXAMPLES, rich_help_panel=REFERENCE)(metrics.metrics)
app.command("metrics-sd", epilog=metrics_sd.EXAMPLES, rich_help_panel=LOOK)(metrics_sd.metrics_sd)


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
