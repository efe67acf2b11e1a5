"""`stream-rl set`: changes settings of a run while it is live, and shows what was changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from stream_rl.cli.live import held_buffer, load_run
from stream_rl.cli.tables import changes_table, counts_table, setting_text
from stream_rl.config import parse_assignment
from stream_rl.errors import ConfigError

if TYPE_CHECKING:
    from stream_rl.buffer import SettingChange

__all__ = ["EXAMPLES", "set_live"]

EXAMPLES = """Examples:

  stream-rl set runs/demo-0 max_staleness=4 run_ahead=2 max_lag=16

  stream-rl set runs/demo-0 concurrency=256

  stream-rl set runs/demo-0 max_ready_groups=null

  stream-rl set runs/demo-0
"""


def set_live(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    assignments: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Settings to change, by their last part.")
    ] = None,
) -> None:
    """Change settings of a live run, in effect within a step; without any, show those that can be, and all changes.

    All are changed or none. The change is kept by --resume, unless the settings then ask for another value than before.
    """
    console = Console(highlight=False)
    asyncio.run(_set(run, _values(assignments or ()), console))


def _values(assignments: Iterable[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in map(parse_assignment, assignments):
        if name in values:
            raise ConfigError(f"{name} is given twice: leave one out")
        values[name] = value
    return values


async def _set(folder: Path, values: dict[str, Any], console: Console) -> None:
    async with held_buffer(folder, load_run(folder)) as buffer:
        if not values:
            console.print(counts_table("live settings", await buffer.live_settings()))
            console.print(changes_table(await buffer.setting_changes()))
            return
        changes = await buffer.set_live(values)
        live = (await buffer.snapshot()).live
    for change in changes:
        console.print(f"{change.setting}: {setting_text(change.old)} -> {setting_text(change.new)}")
        console.print(f"  {effect(change, live)}", style="dim")
    if not changes:
        console.print("nothing changed: these are the values in force")


def effect(change: SettingChange, live: int) -> str:
    """From when a change holds, and for what."""
    lowered = change.new is not None and (change.old is None or change.new < change.old)
    match change.setting.rpartition(".")[2]:
        case "max_lag" if lowered:
            return (
                f"the groups live now ({live}) may still be trained up to lag {setting_text(change.old)}, overdue ones "
                f"first; groups that start from now on keep to {setting_text(change.new)}"
            )
        case "max_lag" | "max_staleness":
            return "from the next step that is taken"
        case "concurrency" if lowered:
            return "within a second; episodes under way end by themselves"
        case "concurrency":
            return "within a second"
        case "run_ahead" if lowered:
            return "no group starts until as many have been trained"
        case _:
            return "from the next decision on"
