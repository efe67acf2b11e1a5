"""Finds a run by its folder, and its buffer while the run is alive."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from stream_rl.config import Config
from stream_rl.errors import BufferUnavailable, ConfigError

if TYPE_CHECKING:
    from stream_rl.buffer import TrajectoryBuffer

SECONDS_TO_ANSWER = 3.0


@dataclass(frozen=True, slots=True)
class RunAnnouncement:
    """run.json: what the supervisor wrote when it started. `started` is seconds since the epoch."""

    pid: int
    started: float
    buffer_url: str
    metrics_url: str
    seconds_before: float

    @classmethod
    def read(cls, folder: Path) -> RunAnnouncement | None:
        """The announcement in a run folder, None when the run was never started."""
        path = folder / "run.json"
        if not path.exists():
            return None
        record = orjson.loads(path.read_bytes())
        return cls(
            pid=record["pid"],
            started=record["started"],
            buffer_url=record["buffer_url"],
            metrics_url=record["metrics_url"],
            seconds_before=record.get("seconds_before", 0.0),
        )

    @property
    def alive(self) -> bool:
        """Whether the supervisor still runs; only meaningful on the machine that it runs on."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def load_run(folder: Path) -> Config:
    """The settings of the run in `folder`. Raises ConfigError when it holds no run."""
    if not (folder / "config.yaml").exists():
        raise ConfigError(f"{folder} is no run folder: it holds no config.yaml; give the folder that `run` names")
    return Config.load(folder / "config.yaml")


@asynccontextmanager
async def running_buffer(folder: Path, config: Config) -> AsyncIterator[TrajectoryBuffer | None]:
    """The buffer of the run in `folder`, None when it does not answer: the run has ended, or was killed."""
    announcement = RunAnnouncement.read(folder)
    if announcement is None:
        yield None
        return
    from stream_rl.buffer import TrajectoryBuffer  # noqa: PLC0415 - slow to import, and --help needs none of it

    password = os.environ.get(config.buffer.password_env)
    try:
        buffer = await TrajectoryBuffer.connect(
            announcement.buffer_url, config.name, password=password, timeout=SECONDS_TO_ANSWER
        )
    except BufferUnavailable:
        yield None
        return
    try:
        yield buffer
    finally:
        await buffer.close()
