"""Finds a run by its folder, and its buffer while the run is alive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stream_rl.config import Config
from stream_rl.errors import BufferUnavailable, ConfigError
from stream_rl.metrics.announcement import RunAnnouncement

if TYPE_CHECKING:
    from stream_rl.buffer import TrajectoryBuffer

SECONDS_TO_ANSWER = 3.0


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
