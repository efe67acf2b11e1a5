"""A process that does what it is told over a pipe, and tells how long and how much CPU time it took."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["contenders.line_up"])
START_SECONDS = 120.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Report(NamedTuple):
    """What a call gave back; `ended` on the machine's monotonic clock, `cpu` in seconds of its process."""

    answer: Any
    ended: float
    cpu: float


class Lost(Exception):
    """The process ended, or did not answer in time."""


class Remote:
    """An object living in a process of its own. `make` builds it there and must be picklable.

    The constructor does not wait for that; the first call does.
    """

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self._start()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None
        return self._process.pid

    def call(self, method: str, *arguments: Any, timeout: float = 120.0) -> Report:
        """Runs a method there and waits for what it gives. Raises Lost."""
        self.begin(method, *arguments)
        return self.result(timeout)

    def begin(self, method: str, *arguments: Any) -> None:
        """Runs a method there; `result` waits for it."""
        self.wait_ready()
        self._pipe.send((method, arguments))

    def result(self, timeout: float = 120.0) -> Report:
        """Waits for the call under way. Raises Lost, and whatever the method raised."""
        try:
            if not self._pipe.poll(timeout):
                raise Lost(f"no answer within {timeout:g} s")
            answer = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise Lost("the process ended") from error
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, Report)
        return answer

    def wait_ready(self) -> None:
        """Waits until the object is made. Raises Lost."""
        if not self._ready:
            self.result(START_SECONDS)
            self._ready = True

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.join()

    def restart(self) -> None:
        """kill -9, and the same object made anew in another process."""
        self.kill()
        self._start()

    def _start(self) -> None:
        self._pipe, there = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_obey, args=(self._make, there), daemon=True)
        self._process.start()
        there.close()
        self._ready = False


def _obey(make: Callable[[], object], pipe: Connection) -> None:
    try:
        target = make()
    except Exception as error:
        pipe.send(RuntimeError(f"not made: {type(error).__name__}: {error}"))
        return
    pipe.send(Report(None, time.monotonic(), 0.0))
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        cpu = time.process_time()
        try:
            answer = getattr(target, method)(*arguments)
        except Exception as error:
            pipe.send(RuntimeError(f"{method}: {type(error).__name__}: {error}"))
        else:
            pipe.send(Report(answer, time.monotonic(), time.process_time() - cpu))


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of these processes so far, user and system."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / CLOCK_TICKS


def memory(pids: list[int]) -> int:
    """Bytes of these processes' memory; what several share is counted once (the kernel's Pss)."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += 1024 * int(line.split()[1])
    return total


def descendants(pid: int) -> dict[int, str]:
    """The living processes below `pid`: id -> command line."""
    children: dict[int, list[int]] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(folder.name))
    found, open_ = {}, [pid]
    while open_:
        for child in children.get(open_.pop(), []):
            found[child] = commands[child]
            open_.append(child)
    return found
