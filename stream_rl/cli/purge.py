"""`stream-rl purge`: deletes what a run has in Redis, and nothing else."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stream_rl.cli.live import is_alive, load_run
from stream_rl.config import Config
from stream_rl.errors import ConfigError
from stream_rl.run_lock import run_lock

__all__ = ["EXAMPLES", "purge"]

EXAMPLES = """Examples:

  stream-rl purge runs/demo-0

  stream-rl purge runs/demo-0 --yes && rm -r runs/demo-0
"""


def purge(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete the run's trajectories: its keys in the Redis of buffer.url, or the files of its embedded server.

    Checkpoints, logs and reports stay; the run cannot be resumed afterwards. A live run is refused.
    """
    config = load_run(run)
    if is_alive(run):
        raise ConfigError(f"run={run} is running now: stop it first")
    with run_lock(run):
        if config.buffer.url is None:
            _purge_folder(run / "buffer", yes)
        else:
            asyncio.run(_purge_keys(config, config.buffer.url, yes))


def _purge_folder(data: Path, yes: bool) -> None:
    if not data.exists():
        typer.echo(f"{data} holds nothing: the run was never started, or was purged")
        return
    size = sum(file.stat().st_size for file in data.rglob("*") if file.is_file())
    if not yes:
        typer.confirm(f"Delete {data} ({size / 1e6:.1f} MB)?", abort=True)
    try:
        shutil.rmtree(data)
    except OSError as error:
        raise ConfigError(f"cannot delete {data}: {error.strerror}") from error
    typer.echo(f"deleted {data} ({size / 1e6:.1f} MB)")


async def _purge_keys(config: Config, url: str, yes: bool) -> None:
    from stream_rl.buffer import TrajectoryBuffer  # noqa: PLC0415 - slow to import, and --help needs none of it
    from stream_rl.buffer.connection import masked  # noqa: PLC0415 - as above

    async with await TrajectoryBuffer.of(config, url) as buffer:
        if producers := len(await buffer.live_producers()):
            raise ConfigError(f"the run {config.name!r} is running: {producers} producers are alive; stop it first")
        if not yes:
            typer.confirm(f"Delete every key of the run {config.name!r} from {masked(url)}?", abort=True)
        gone = 0
        with Console(stderr=True).status("deleting") as shown:
            async for gone in buffer.purge():
                shown.update(f"deleted {gone} keys")
        typer.echo(f"deleted {gone} keys of the run {config.name!r}")
