"""`stream-rl status`: a run at a glance, live or afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from stream_rl.cli.live import is_alive, load_run, running_buffer
from stream_rl.cli.tables import live_view, still_view
from stream_rl.config import Config
from stream_rl.errors import BufferUnavailable, ConfigError
from stream_rl.metrics.announcement import RunAnnouncement
from stream_rl.metrics.run_folder import read_summary, surviving_steps

if TYPE_CHECKING:
    from stream_rl.buffer import RunSnapshot, SettingChange

__all__ = ["view"]

EXAMPLES = """Examples:

  stream-rl status runs/demo-0

  stream-rl status runs/demo-0 --once > status.txt
"""
SECONDS_BETWEEN_LOOKS = 1.0


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    watch: Annotated[
        bool | None,
        typer.Option("--watch/--once", help="Keep looking, or look once.", show_default="watch on a terminal"),
    ] = None,
) -> None:
    """Show a run: processes, recoveries, groups and samples by state, knobs, versions, rewards."""
    config = load_run(run)
    console = Console()
    if watch if watch is not None else console.is_terminal:
        asyncio.run(_watch(run, config, console))
    else:
        console.print(asyncio.run(view(run, config))[0])


async def view(folder: Path, config: Config) -> tuple[RenderableType, bool]:
    """What the status shows now, and whether the run is supervised."""
    steps = surviving_steps(folder / "steps.jsonl")
    announcement = RunAnnouncement.read(folder)
    supervised = is_alive(folder)
    looked = await _look(folder, config)
    if looked is None or announcement is None:
        return still_view(config, read_summary(folder), steps, supervised), supervised
    snapshot, changes = looked
    return live_view(config, snapshot, steps, announcement.metrics_url if supervised else None, changes), supervised


async def _look(folder: Path, config: Config) -> tuple[RunSnapshot, list[SettingChange]] | None:
    async with running_buffer(folder, config) as buffer:
        if buffer is None:
            return None
        try:
            return await buffer.snapshot(), await buffer.setting_changes()
        except (BufferUnavailable, ConfigError):  # Redis is being restarted, or the run is not opened yet
            return None


async def _watch(folder: Path, config: Config, console: Console) -> None:
    with Live(console=console, auto_refresh=False) as live:
        alive = True
        while alive:
            shown, alive = await view(folder, config)
            live.update(shown, refresh=True)
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
