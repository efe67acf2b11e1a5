"""Threads for synchronous environments: a call that blocks holds one of them, never the event loop.

A call that outlives its time-out is written off: its thread keeps running, as Python cannot stop it, but another takes
its place at once, so that calls which hang never use the others up. The threads are daemons: none delays an exit.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["EnvThreads"]

Result = TypeVar("Result")
Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class EnvThreads:
    """At most `limit` calls run at a time, written-off ones not counted; further calls wait for a thread."""

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._idle = 0

    async def run(self, function: Callable[[], Result], timeout: float) -> Result:
        """Calls `function` in a thread. The wait for a free thread does not count as time.

        Raises:
            TimeoutError: it took longer than `timeout` seconds.
            RuntimeError: it raised what is no Exception: SystemExit, CancelledError. Others are raised as they are.
        """
        async with self._free:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Result] = loop.create_future()
            if self._idle == 0:
                threading.Thread(target=self._work, name="env", daemon=True).start()
                self._idle += 1
            self._idle -= 1
            self._jobs.put((loop, future, function))
            async with asyncio.timeout(timeout):
                return await future

    def close(self) -> None:
        """Ends the idle threads; those that run a call end after it."""
        while self._idle:
            self._idle -= 1
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, future, function = job
            try:
                outcome: tuple[Any, BaseException | None] = (function(), None)
            except BaseException as error:  # carried to the caller, whatever it is
                outcome = (None, error)
            try:
                loop.call_soon_threadsafe(self._deliver, future, *outcome)
            except RuntimeError:  # the loop has closed: nobody waits for this call any more
                return

    def _deliver(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._idle += 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:  # these would mean something to whoever waits: the end of the program, or a cancellation
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
