"""A real server that can lose its newest writes, as a crash before the disk was synced or a late replica would."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from stream_rl.buffer import EmbeddedServer


class RewindingServer(EmbeddedServer):
    """Everything acknowledged is in the append-only file at once: a copy of that file is the server at this moment."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, fsync="always")

    def mark(self) -> None:
        """Remembers this moment."""
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.copytree(self._files, self._kept)

    def rewind(self) -> None:
        """kill -9; then the server starts as it was at the last `mark`."""
        self.kill()
        shutil.rmtree(self._files)
        shutil.copytree(self._kept, self._files)
        self.start()

    def kill(self) -> None:
        """kill -9, and waits until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    @property
    def _files(self) -> Path:
        return self.folder / "appendonlydir"

    @property
    def _kept(self) -> Path:
        return self.folder / "kept"
