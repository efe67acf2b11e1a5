"""A process that holds environments, for `environment.executor: processes`; env_processes.py has its other end.

Each call runs in a thread, an async one in the event loop, under a time-out of its own: an environment that sleeps
delays no other. The process ends when the other end of its socket closes. What travels is pickled: both ends are one
program on one machine, and nobody else has the socket.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from stream_rl.envs.base import BaseInteractionEnv, Message, is_empty, mistakes_are_answers
from stream_rl.envs.loading import load_environment
from stream_rl.errors import ActionError, EnvInfraError, StreamRLError
from stream_rl.producer.env_threads import EnvThreads
from stream_rl.slime.imports import allow_slime_imports

__all__ = ["HEADER", "Answered", "Facts", "Job", "serve"]

HEADER = 8
"""Bytes before a reply's pickle: its job's number, so that a reply which cannot be unpickled still finds its caller."""

ENDS = (SystemExit, asyncio.CancelledError, BaseExceptionGroup)
"""What would end this process, or leave the other end without an answer. Nobody cancels a call here."""

ASKED = ("reset", "step", "cut", "state_dict", "load_state_dict", "close", "format_observation")


class Job(NamedTuple):
    """A call of `method` on environment `env`, which may take `timeout` seconds; "build" makes the environment."""

    number: int
    env: int
    method: str
    arguments: tuple[Any, ...]
    timeout: float


class Facts(NamedTuple):
    """What a new environment has: methods of its own, of those that anybody asks for."""

    methods: frozenset[str]
    deterministic: bool


class Answered(NamedTuple):
    """What a call returned (an ActionError too), the environment's state after it, and its observation as a message."""

    value: Any
    state: Mapping[str, Any] | None
    message: Message | None


class _Host:
    def __init__(self, pipe: Connection, path: str, threads: int) -> None:
        self._pipe = pipe
        self._path = path
        self._threads = EnvThreads(threads)
        self._envs: dict[int, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()
        await asyncio.Event().wait()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while True:
                loop.call_soon_threadsafe(self._begin, self._pipe.recv())
        except (EOFError, OSError):
            os._exit(0)  # calls that hang must not keep the process alive

    def _begin(self, job: Job) -> None:
        task = asyncio.create_task(self._answer(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, job: Job) -> None:
        answer: tuple[Facts | Answered | None, BaseException | None]
        try:
            answer = (await self._do(job), None)
        except (StreamRLError, TimeoutError) as error:
            answer = (None, error)
        except (Exception, *ENDS) as error:  # an environment may raise anything
            answer = (None, _unknown(error))
        try:
            data = ForkingPickler.dumps(answer)
        except Exception as error:  # what it returned or raised cannot be pickled
            data = ForkingPickler.dumps((None, _unknown(error)))
        self._pipe.send_bytes(job.number.to_bytes(HEADER, "big") + bytes(data))

    async def _do(self, job: Job) -> Facts | Answered | None:
        if job.method == "build":
            return await self._build(job)
        env = self._envs.pop(job.env, None) if job.method == "close" else self._envs[job.env]
        if job.method == "close" and "close" not in _methods(env):
            return None
        function = getattr(env, job.method)
        return await self._visit(function, lambda: function(*job.arguments), job.timeout, env)

    async def _build(self, job: Job) -> Facts:
        build_env = load_environment(self._path).build_env
        sample, args, named = job.arguments
        env = await self._threads.run(lambda: build_env(sample=sample, args=args, **named), job.timeout)
        self._envs[job.env] = env
        return Facts(_methods(env), bool(getattr(env, "deterministic", False)))

    async def _visit(self, named: Callable[..., Any], call: Callable[[], Any], timeout: float, env: Any) -> Answered:
        visit: Callable[[], Any] = mistakes_are_answers(call, named, partial(_answered, env))
        if not inspect.iscoroutinefunction(visit):
            return await self._threads.run(visit, timeout)
        async with asyncio.timeout(timeout):
            answered: Answered = await visit()
        return answered


def _unknown(error: BaseException) -> EnvInfraError:
    return EnvInfraError(f"{type(error).__name__}: {error}", cause="unknown")


def _methods(env: Any) -> frozenset[str]:
    own = {name for name in ASKED if callable(getattr(env, name, None))}
    return frozenset(name for name in own if not _inherited(env, name))


def _inherited(env: Any, name: str) -> bool:
    """Whether it is only what the base class offers."""
    mine, base = getattr(type(env), name, None), getattr(BaseInteractionEnv, name, None)
    return base is not None and mine is base


def _answered(env: Any, value: Any) -> Answered:
    methods = _methods(env)
    state = env.state_dict() if {"state_dict", "load_state_dict"} <= methods else None
    return Answered(value, state, _message(env, value) if "format_observation" in methods else None)


def _message(env: Any, value: Any) -> Message | None:
    shown = {"obs_str": str(value)} if isinstance(value, ActionError) else value[0] if _is_answer(value) else None
    if not isinstance(shown, Mapping) or is_empty(shown):
        return None
    message: Message = env.format_observation(shown)
    return message


def _is_answer(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) > 1


def serve(descriptor: int, path: str, threads: int, slime_imports: bool) -> None:
    """Answers jobs from the socket with this descriptor until its other end closes; then the process ends."""
    if slime_imports:
        allow_slime_imports()
    asyncio.run(_Host(Connection(descriptor), path, threads).run())
