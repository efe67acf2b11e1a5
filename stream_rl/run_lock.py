"""One process at a time runs a run: it holds a lock in the run's folder, and the lock ends with it, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from stream_rl.errors import ConfigError

__all__ = ["is_locked", "run_lock"]

FILE = "lock"


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Holds the run in `folder`, which must exist and be writable, for as long as the block runs.

    Raises:
        ConfigError: another process holds it.
    """
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigError(f"run={folder} is running now: stop that process first, or name another folder") from error
    try:
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a process of this machine holds the run in `folder` now."""
    try:
        descriptor = os.open(folder / FILE, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
