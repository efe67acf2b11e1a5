"""run.json: by what a supervisor writes when it starts, `stream-rl status` and `report` find a live run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from stream_rl.errors import DataError

__all__ = ["RunAnnouncement"]

FILE = "run.json"


@dataclass(frozen=True, slots=True)
class RunAnnouncement:
    """A supervisor that has started.

    pid             its process
    started         seconds since the epoch
    seconds_before  seconds that earlier starts of the run took
    buffer_url      where the run's Redis answers while the run lives
    metrics_url     the supervisor's own /metrics
    """

    pid: Annotated[int, Field(gt=0, lt=2**31)]
    started: float
    seconds_before: float
    buffer_url: str
    metrics_url: str

    def write(self, folder: Path) -> None:
        """Leaves the announcement in a run folder. Raises OSError when the folder cannot be written."""
        written = folder / f"{FILE}.new"
        written.write_bytes(orjson.dumps(self, option=orjson.OPT_INDENT_2))
        written.replace(folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> RunAnnouncement | None:
        """The announcement in a run folder, None when the run was never started. Raises DataError."""
        path = folder / FILE
        try:
            return _READER.validate_json(path.read_bytes(), strict=True)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            (first, *_) = error.errors()
            named = "".join(f"{name}: " for name in first["loc"])
            raise DataError(f"{path} is damaged, remove it: {named}{first['msg']}") from error

    @property
    def alive(self) -> bool:
        """Whether a process of its id exists; only meaningful on the machine that it runs on."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


_READER = TypeAdapter(RunAnnouncement)
