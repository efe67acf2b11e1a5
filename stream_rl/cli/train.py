"""`stream-rl train`: checks everything, then runs and supervises all processes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from stream_rl.cli.tables import summary_table
from stream_rl.config import Config

__all__ = ["EXAMPLES", "train"]

EXAMPLES = """Examples:

  stream-rl train examples/guess_number.yaml

  stream-rl train examples/guess_number.yaml run=runs/hot trainer.learning_rate=3e-3 scheduling.max_staleness=4

  stream-rl train examples/guess_number.yaml --dry-run

  stream-rl train examples/guess_number.yaml --resume
"""
INTERRUPTED = 130


def train(
    settings: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The run's settings; see `settings`.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Settings that replace the file's.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the run folder.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check model, environment, data, Redis, ports.")
    ] = False,
) -> None:
    """Train: engines, producers and trainer, supervised, until the last step.

    Ctrl-C commits what is open and writes a checkpoint; the same command with --resume goes on from there.
    A second one stops at once: then it goes on from the last checkpoint.
    """
    config = Config.load(settings, overrides or ())
    from stream_rl.preflight import preflight  # noqa: PLC0415 - slow to import, and --help needs none of it

    template = preflight(config, resume=resume)
    console = Console()
    if dry_run:
        console.print(
            f"ready: {config.trainer.steps} steps of {config.rollout.groups_per_step} groups into {config.run}"
        )
    console.print(str(template), highlight=False, markup=False, soft_wrap=True)
    if dry_run:
        return
    from stream_rl.cli.progress import TrainingProgress  # noqa: PLC0415 - as above
    from stream_rl.launch import train as launch  # noqa: PLC0415 - imports Ray

    with TrainingProgress(config, console) as progress:
        progress.say(f"starting {config.run}: each process writes its log into {config.folder / 'logs'}")
        summary = launch(config, resume=resume, progress=progress)
    _conclude(console, config, summary)


def _conclude(console: Console, config: Config, summary: Mapping[str, Any]) -> None:
    console.print(summary_table({name: value for name, value in summary.items() if name != "finished"}))
    console.print(f"report: {config.folder / 'report.html'}", highlight=False)
    if not summary["finished"]:
        console.print("stopped before the last step; the same command with --resume goes on", highlight=False)
        raise typer.Exit(INTERRUPTED)
