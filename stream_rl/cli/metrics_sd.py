"""`stream-rl metrics-sd`: tells Prometheus where the processes of runs show their metrics.

Of many runs, one that cannot be read hides no other: it is said, once, and left out.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import orjson
import typer

from stream_rl.cli.live import is_alive, load_run, running_buffer
from stream_rl.errors import BufferUnavailable, ConfigError, StreamRLError
from stream_rl.metrics.discovery import Target, discovery_server, target

__all__ = ["EXAMPLES", "Look", "metrics_sd"]

logger = logging.getLogger(__name__)

EXAMPLES = """Examples:

  stream-rl metrics-sd runs                  all runs in the folder, on http://127.0.0.1:9190

  stream-rl metrics-sd runs/demo-0 --once    for file_sd_configs, or to look
"""


def metrics_sd(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A run's folder, or one that holds runs.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for a Prometheus elsewhere.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 9190,
    once: Annotated[bool, typer.Option("--once", help="Print the targets and end.")] = False,
) -> None:
    """Serve Prometheus's HTTP service discovery: where each live run shows its metrics, engines included."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder")
    if once:
        typer.echo(orjson.dumps(Look(folder)(), option=orjson.OPT_INDENT_2).decode())
        return
    try:
        server = discovery_server(host, port, Look(folder))
    except OSError as error:
        raise ConfigError(f"cannot listen on --host {host} --port {port}: {error.strerror}") from error
    typer.echo(f"targets of the runs in {folder}: http://{host}:{server.server_port}")
    with server:
        server.serve_forever()


class Look:
    """The targets of the run in `folder`, or of every live run in a folder of it; called again, it looks again.

    Raises StreamRLError when `folder` is a run's and cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._said: set[str] = set()

    def __call__(self) -> list[Target]:
        """What is there now."""
        return asyncio.run(self._targets())

    async def _targets(self) -> list[Target]:
        if (self._folder / "config.yaml").exists():
            return await _targets_of(self._folder)
        runs = sorted(path.parent for path in self._folder.glob("*/run.json"))
        found = await asyncio.gather(*map(self._targets_or_none, runs))
        return [one for targets in found for one in targets]

    async def _targets_or_none(self, run: Path) -> list[Target]:
        try:
            return await _targets_of(run)
        except StreamRLError as error:
            if str(error) not in self._said:
                self._said.add(str(error))
                logger.warning("no targets of the run in %s: %s", run, error)
            return []


async def _targets_of(run: Path) -> list[Target]:
    """None while nobody runs the run, or its Redis is away."""
    if not is_alive(run):
        return []
    config = load_run(run)
    async with running_buffer(run, config) as buffer:
        if buffer is None:
            return []
        try:
            seen = await buffer.snapshot()
        except (BufferUnavailable, ConfigError):  # Redis is being restarted, or the run is not opened yet
            return []
    shown = [process for process in seen.processes if process.metrics_url]
    return [
        *(target(config.name, process.kind, process.name, process.metrics_url) for process in shown),
        *(target(config.name, "engine", engine.engine_id, engine.url) for engine in seen.engines),
    ]
