"""Calls into the world: under a time-out, sync ones in a thread, and whatever is raised given one of our names."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from stream_rl.errors import EnvFatalError, EnvInfraError, UserError
from stream_rl.producer.env_threads import EnvThreads

__all__ = ["WorldCalls", "named_failures"]


class WorldCalls:
    """Calls functions; each may take `timeout` seconds, the setting `environment.step_timeout`.

    Args:
        passes: what besides EnvInfraError, EnvFatalError and UserError reaches the caller as it was raised.
    """

    def __init__(self, threads: EnvThreads, timeout: float, *, passes: tuple[type[Exception], ...] = ()) -> None:
        self._threads = threads
        self._timeout = timeout
        self._passes = passes

    async def __call__(self, function: Callable[[], Any]) -> Any:
        """The function's answer. Raises as `named_failures`."""
        with named_failures(self._timeout, self._passes):
            if not inspect.iscoroutinefunction(function):
                return await self._threads.run(function, self._timeout)
            async with asyncio.timeout(self._timeout):
                return await function()


@contextlib.contextmanager
def named_failures(timeout: float, passes: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Gives a name to whatever is raised inside.

    A cancellation passes only if somebody has asked this task for one: what a world raises as such would end the sample
    without a word, its lease held for ever. SystemExit would end the event loop.

    Raises:
        EnvInfraError: for a TimeoutError, and for what has no name here: that is its infrastructure's fault.
        EnvFatalError, UserError: as they were raised.
    """
    named: tuple[type[Exception], ...] = (EnvInfraError, EnvFatalError, UserError, *passes)
    try:
        yield
    except named:
        raise
    except TimeoutError as error:
        message = f"no answer within environment.step_timeout={timeout:g} seconds"
        raise EnvInfraError(message, cause="timeout") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise EnvInfraError("it was cancelled from inside", cause="unknown") from error
    except (Exception, SystemExit, BaseExceptionGroup) as error:  # a world may raise anything
        raise EnvInfraError(f"{type(error).__name__}: {error}", cause="unknown") from error
