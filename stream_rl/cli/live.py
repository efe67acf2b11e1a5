"""Finds a run by its folder, and its buffer: while the run is alive, or as it left it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stream_rl.config import Config
from stream_rl.errors import BufferUnavailable, ConfigError
from stream_rl.metrics.announcement import RunAnnouncement
from stream_rl.run_lock import is_locked, run_lock

if TYPE_CHECKING:
    from stream_rl.buffer import TrajectoryBuffer

__all__ = ["held_buffer", "is_alive", "load_run", "running_buffer"]

SECONDS_TO_ANSWER = 3.0
SECONDS_TO_LOAD = 600.0


def load_run(folder: Path) -> Config:
    """The settings of the run in `folder`. Raises ConfigError when it holds no run, or no readable one."""
    path = folder / "config.yaml"
    try:
        exists = path.exists()
    except OSError as error:
        raise ConfigError(f"cannot look into {folder}: {error.strerror}") from error
    if not exists:
        raise ConfigError(f"{folder} is no run folder: it holds no config.yaml; give the folder that `run` names")
    try:
        return Config.load(path)
    except ConfigError as error:
        raise ConfigError(f"the settings in {path} cannot be read, {error}") from error


@asynccontextmanager
async def running_buffer(folder: Path, config: Config) -> AsyncIterator[TrajectoryBuffer | None]:
    """The buffer of the run in `folder`, None when it does not answer: the run has ended, or was killed."""
    announcement = RunAnnouncement.read(folder)
    if announcement is None:
        yield None
        return
    from stream_rl.buffer import TrajectoryBuffer  # noqa: PLC0415 - slow to import, and --help needs none of it

    try:
        buffer = await TrajectoryBuffer.of(config, announcement.buffer_url, timeout=SECONDS_TO_ANSWER)
    except BufferUnavailable:
        yield None
        return
    try:
        yield buffer
    finally:
        await buffer.close()


@asynccontextmanager
async def held_buffer(folder: Path, config: Config) -> AsyncIterator[TrajectoryBuffer]:
    """The buffer of the run in `folder`, live or not.

    The embedded server of a run that has stopped is started over its files for as long as the block runs, and the run
    is held meanwhile: nobody else can start it.

    Raises:
        ConfigError: the run was never started, or was purged.
        BufferUnavailable: its Redis does not answer.
    """
    from stream_rl.buffer import TrajectoryBuffer  # noqa: PLC0415 - as above

    async with contextlib.AsyncExitStack() as stack:
        url = config.buffer.url
        if url is None and is_alive(folder):
            buffer = await stack.enter_async_context(running_buffer(folder, config))
            if buffer is None:
                raise BufferUnavailable(f"the run in {folder} is starting, or brings its buffer back: try again")
        else:
            buffer = await TrajectoryBuffer.of(config, url or stack.enter_context(_stopped_server(folder, config)))
            await stack.enter_async_context(buffer)
        if not await buffer.was_opened():
            raise ConfigError(
                f"the buffer holds nothing of a run called {config.name!r}: it was purged, or not started"
            )
        yield buffer


def is_alive(folder: Path) -> bool:
    """Whether a supervisor runs the run in `folder` on this machine.

    Its process id alone says little, another process may have it by now; a look at a stopped run holds the lock too.
    """
    announcement = RunAnnouncement.read(folder)
    return announcement is not None and announcement.alive and is_locked(folder)


@contextlib.contextmanager
def _stopped_server(folder: Path, config: Config) -> Iterator[str]:
    data = folder / "buffer"
    if not data.exists():
        raise ConfigError(f"{folder} holds no trajectories: the run was never started, or was purged")
    from stream_rl.buffer import EmbeddedServer  # noqa: PLC0415 - as above

    with run_lock(folder), EmbeddedServer(data, fsync=config.buffer.fsync, start_timeout=SECONDS_TO_LOAD) as server:
        yield server.url
