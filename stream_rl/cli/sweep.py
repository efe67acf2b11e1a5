"""`stream-rl sweep`: trains under several bounds on staleness and seeds, and reports what they cost and bring."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from stream_rl.cli.numbers import whole_numbers
from stream_rl.cli.tables import print_whole
from stream_rl.config import Config

if TYPE_CHECKING:
    from stream_rl.tuning.sweep import Cell
    from stream_rl.tuning.sweep_report import Row

__all__ = ["EXAMPLES", "sweep"]

EXAMPLES = """Examples:

  stream-rl sweep examples/guess_number.yaml --max-staleness 0,1,2,4,8 --seeds 3

  stream-rl sweep examples/guess_number.yaml trainer.steps=100 --max-staleness 2 --seeds 3 --variant "clip:" --variant "decoupled: trainer.correction=truncated trainer.clip_against=start"
"""  # noqa: E501 - a command stands in one line


def sweep(  # noqa: PLR0917 - the command's options
    settings: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The runs' settings; see `settings`.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Settings that replace the file's.")
    ] = None,
    max_staleness: Annotated[str, typer.Option(help="Bounds to train under, with commas.")] = "0,1,2,4,8",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, from the settings' seed on.")] = 3,
    variant: Annotated[
        list[str] | None, typer.Option(help="Further settings under a name: 'NAME: KEY=VALUE ...'; may be repeated.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the runs lie.", show_default="the settings' run folder, and -sweep")
    ] = None,
    target: Annotated[float, typer.Option(help="Reward whose first reaching is timed.")] = 0.9,
    at_once: Annotated[int, typer.Option(min=1, help="Runs at a time; more than one where the machine has room.")] = 1,
    report_only: Annotated[bool, typer.Option("--report-only", help="Train nothing; report what is there.")] = False,
) -> None:
    """Train the same settings under each bound on staleness, each variant and each seed, and write a report.

    Stopped by Ctrl-C, the same command goes on: runs that have finished stay, the one under way is resumed. A bound of
    s means max_staleness = max_lag = s and run_ahead = min(3, s).
    """
    config = Config.load(settings, overrides or ())
    from stream_rl.tuning.sweep import Variant, cells, parse_variant, run_cells, train_cell  # noqa: PLC0415 - slow
    from stream_rl.tuning.sweep_report import write_sweep  # noqa: PLC0415 - slow

    console = Console(highlight=False)
    where = folder or config.folder.with_name(f"{config.name}-sweep")
    todo = cells(
        settings, overrides or (), staleness=whole_numbers("--max-staleness", max_staleness, 0),
        variants=[parse_variant(text) for text in variant or ()] or [Variant()],
        seeds=range(config.seed, config.seed + seeds), folder=where,
    )  # fmt: skip
    steps = config.trainer.steps
    done = sum(cell.finished(steps) for cell in todo)
    console.print(f"{len(todo)} runs of {steps} steps in {where}, {done} of them finished")
    if not report_only:

        def after(cell: Cell) -> None:
            write_sweep(where, todo, target)
            finished = sum(other.finished(steps) for other in todo)
            console.print(f"{finished} of {len(todo)} finished: {cell.folder.name}")

        run_cells(todo, steps, partial(train_cell, settings), at_once=at_once, after=after)
    print_whole(console, sweep_table(write_sweep(where, todo, target), target))
    console.print(f"report: {where / 'sweep.html'}")


def sweep_table(rows: list[Row], target: float) -> Table:
    """One row a bound and variant."""
    from stream_rl.tuning.sweep_report import cells_of, heads_of  # noqa: PLC0415 - as above

    table = Table(box=box.SIMPLE_HEAD)
    for column in heads_of(target):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        table.add_row(*cells_of(row))
    return table
