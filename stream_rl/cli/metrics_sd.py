"""`stream-rl metrics-sd`: tells Prometheus where the processes of runs show their metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import orjson
import typer

from stream_rl.cli.live import is_alive, load_run, running_buffer
from stream_rl.errors import BufferUnavailable, ConfigError
from stream_rl.metrics.discovery import Target, discovery_server, target

__all__ = ["EXAMPLES", "find_targets", "metrics_sd"]

EXAMPLES = """Examples:

  stream-rl metrics-sd runs                  all runs in the folder, on http://127.0.0.1:9190

  stream-rl metrics-sd runs/demo-0 --once    for file_sd_configs, or to look
"""


def metrics_sd(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A run's folder, or one that holds runs.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for a Prometheus elsewhere.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 9190,
    once: Annotated[bool, typer.Option("--once", help="Print the targets and end.")] = False,
) -> None:
    """Serve Prometheus's HTTP service discovery: every process of every live run, engines included."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder")
    if once:
        typer.echo(orjson.dumps(find_targets(folder), option=orjson.OPT_INDENT_2).decode())
        return
    try:
        server = discovery_server(host, port, lambda: find_targets(folder))
    except OSError as error:
        raise ConfigError(f"cannot listen on --host {host} --port {port}: {error.strerror}") from error
    typer.echo(f"targets of the runs in {folder}: http://{host}:{server.server_port}")
    with server:
        server.serve_forever()


def find_targets(folder: Path) -> list[Target]:
    """The targets of the run in `folder`, or of every live run in a folder of it."""
    candidates = (
        [folder] if (folder / "config.yaml").exists() else sorted(path.parent for path in folder.glob("*/run.json"))
    )
    return asyncio.run(_targets([run for run in candidates if is_alive(run)]))


async def _targets(runs: list[Path]) -> list[Target]:
    found = await asyncio.gather(*map(_targets_of, runs))
    return [one for targets in found for one in targets]


async def _targets_of(run: Path) -> list[Target]:
    """None while the run's Redis is away: the others are told all the same."""
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
