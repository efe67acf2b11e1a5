"""Processes for environments that would hold this one's interpreter: `environment.executor: processes`.

    EnvSession ──► RemoteEnv ──► one of `count` processes ──► the environment, in a thread of it

A call that outlives its time-out is written off by the process itself, as env_threads does. A process that does not
even say so, because its interpreter is held, is killed: its environments fail as infrastructure, are built again in
another process, and come back by their resume class. A process that dies by itself is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from stream_rl.envs.base import Message
from stream_rl.errors import ActionError, EnvInfraError
from stream_rl.producer.env_process import HEADER, Answered, Facts, Job, serve

__all__ = ["EnvProcesses", "RemoteEnv"]

logger = logging.getLogger(__name__)

GRACE = 2.0
"""Seconds beyond a call's time-out after which a process counts as stuck."""
START_SECONDS = 60.0
"""The same for a process that has not answered yet: it starts, and imports the environment."""
KILL_SECONDS = 10.0
"""Seconds that the kernel may take to end a process that was killed."""
SERVE = f"from {serve.__module__} import serve; serve"
VISITED = frozenset({"reset", "step", "cut", "load_state_dict"})


class EnvProcesses:
    """Up to `count` processes, started as they are needed. For one event loop.

    Args:
        path: the environment's, as in `environment.path`.
        slime_imports: as in `environment.slime_imports`.
        limit: calls under way at a time, over all processes; further ones wait, which does not count as time.
        timeout: seconds that one call may take.
    """

    def __init__(self, path: str, *, count: int, limit: int, timeout: float, slime_imports: bool = False) -> None:
        self._environment = (path, limit, slime_imports)
        self._count = count
        self._timeout = timeout
        self._free = asyncio.Semaphore(limit)
        self._starting = asyncio.Lock()
        self._processes: list[_Process] = []
        self._envs = itertools.count()
        self._jobs = itertools.count()

    async def build_env(self, sample: Any = None, args: Any = None, **named: Any) -> RemoteEnv:
        """As a module's `build_env`. Raises what that raises, and EnvInfraError for a time-out or a dead process."""
        process, number = await self._process(), next(self._envs)
        facts = await self.call(process, number, "build", sample, args, named)
        return RemoteEnv(self, process, number, facts)

    async def call(self, process: _Process, env: int, method: str, *arguments: Any) -> Any:
        """The process's result. Raises as `build_env`."""
        async with self._free:
            answer = process.ask(Job(next(self._jobs), env, method, arguments, self._timeout))
            await asyncio.wait([answer], timeout=self._timeout + (GRACE if process.answers else START_SECONDS))
            if not answer.done():
                process.kill()
            try:
                return answer.result()
            except TimeoutError as error:
                message = f"no answer within environment.step_timeout={self._timeout:g} seconds"
                raise EnvInfraError(message, cause="timeout") from error

    def close(self) -> None:
        """Ends every process at once."""
        for process in self._processes:
            process.kill()

    async def _process(self) -> _Process:
        async with self._starting:
            self._processes = [process for process in self._processes if process.alive]
            if len(self._processes) < self._count:
                self._processes.append(await asyncio.to_thread(_Process, *self._environment))
                self._processes[-1].listen()
            return min(self._processes, key=lambda process: process.environments)


class _Process:
    """One of them. Only `__init__` may be called in another thread than the event loop's."""

    def __init__(self, path: str, threads: int, slime_imports: bool) -> None:
        here, there = socket.socketpair()
        with there:
            self._popen = subprocess.Popen(
                [sys.executable, "-c", f"{SERVE}({there.fileno()}, {path!r}, {threads}, {slime_imports})"],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self.alive = True
        self.answers = False
        self.environments = 0
        self._pipe = Connection(here.detach())
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def listen(self) -> None:
        """Starts the threads that send and receive: neither may hold the event loop up."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._send, name="env-send", daemon=True).start()
        threading.Thread(target=self._receive, args=(loop,), name="env-receive", daemon=True).start()

    def ask(self, job: Job) -> asyncio.Future[Any]:
        """Hands a job over; the future has its result."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.alive:
            future.set_exception(_ended())
            return future
        self.environments += (job.method == "build") - (job.method == "close")
        self._waiting[job.number] = future
        self._outbox.put(ForkingPickler.dumps(job))
        return future

    def kill(self) -> None:
        """Ends the process; whoever waits for it is told."""
        self._popen.kill()
        self._died()

    def _died(self) -> None:
        self.alive = False
        self._outbox.put(None)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_ended())
        self._waiting.clear()

    def _send(self) -> None:
        try:
            while (data := self._outbox.get()) is not None:
                self._pipe.send_bytes(data)
        except OSError:  # the process has ended, which the receiver finds out as well
            return

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while True:
                data = self._pipe.recv_bytes()
                loop.call_soon_threadsafe(self._deliver, int.from_bytes(data[:HEADER], "big"), data[HEADER:])
        except (EOFError, OSError):
            self._reap()
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(self._died)

    def _reap(self) -> None:
        """Sees to it that a process which has closed its socket ends."""
        for seconds in (GRACE, KILL_SECONDS):
            try:
                self._popen.wait(seconds)
            except subprocess.TimeoutExpired:
                self._popen.kill()
            else:
                return
        logger.error("process %d of environments was killed and does not end", self._popen.pid)

    def _deliver(self, number: int, data: bytes) -> None:
        self.answers = True
        future = self._waiting.pop(number, None)
        if future is None or future.done():
            return
        try:
            result, error = ForkingPickler.loads(data)
        except Exception as failure:  # what an environment returns may be anything
            result, error = None, EnvInfraError(f"{type(failure).__name__}: {failure}", cause="unknown")
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class RemoteEnv:
    """An environment in another process: its methods are coroutines here, and its state came with the last answer."""

    def __init__(self, processes: EnvProcesses, process: _Process, number: int, facts: Facts) -> None:
        self.deterministic = facts.deterministic
        self._call = functools.partial(processes.call, process, number)
        self._state: Mapping[str, Any] | None = None
        self._message: Message | None = None
        for name in (facts.methods & VISITED) | {"close"}:
            setattr(self, name, functools.partial(self._visit, name))
        if "state_dict" in facts.methods:
            self.state_dict = lambda: self._state
        if "format_observation" in facts.methods:
            self.format_observation = lambda _observation: self._message

    async def _visit(self, method: str, *arguments: Any) -> Any:
        answered = await self._call(method, *arguments)
        if not isinstance(answered, Answered):
            return None
        self._state, self._message = answered.state, answered.message
        if isinstance(answered.value, ActionError):
            raise answered.value
        return answered.value


def _ended() -> EnvInfraError:
    return EnvInfraError("the environment's process ended", cause="process")
