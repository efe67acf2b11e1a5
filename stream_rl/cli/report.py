"""`stream-rl report`: the plots of a run, finished or not, in one HTML file."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer

from stream_rl.cli.live import is_alive, load_run, running_buffer
from stream_rl.errors import ConfigError
from stream_rl.metrics.announcement import RunAnnouncement
from stream_rl.metrics.report import write_report
from stream_rl.metrics.summary import RunFacts, summarise

__all__ = ["EXAMPLES", "report"]

EXAMPLES = """Example:

  stream-rl report runs/demo-0
"""


def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]) -> None:
    """Write report.html, which opens without a network; of a live run, bring summary.json up to date first."""
    facts = asyncio.run(_live_facts(run))
    try:
        if facts is not None:
            summarise(run, facts)
        typer.echo(write_report(run))
    except OSError as error:
        raise ConfigError(f"cannot write the report into {run}: {error.strerror}") from error


async def _live_facts(folder: Path) -> RunFacts | None:
    """What the buffer of a live run knows; None once the run is over, whose summary.json is then final."""
    config = load_run(folder)
    announcement = RunAnnouncement.read(folder)
    if announcement is None or not is_alive(folder):
        return None
    async with running_buffer(folder, config) as buffer:
        if buffer is None:
            return None
        snapshot = await buffer.snapshot()
        return RunFacts(
            recoveries=snapshot.recoveries,
            committed_turns=snapshot.committed_turns,
            journal_turns=await buffer.journal_turns(),
            wall_seconds=announcement.seconds_before + time.time() - announcement.started,
        )
