"""Keeps one run's processes alive until the trainer has done its last step. Knows no Ray: `Processes` starts them.

    Supervisor (asyncio, the command's own process)
      ├── keep redis        the embedded server, unless buffer.url names one
      ├── keep engine-i     one SGLang server; one of engine.urls: external_engine.py
      ├── keep producer-i   hundreds of turn loops; one that hangs has died: heartbeats.py
      ├── keep trainer      world_size ranks; one rank's death ends all of them
      └── watch             what is written down about the run: recording.py

A keeper brings its process back when it dies, counts the recovery in the buffer, and gives up when the `DeathBudget`
says that it does not help. A `UserError` or `NoTrainableBatch` of any process ends the run at once with its message.
An interrupt drains: producers commit and release, the trainer writes a checkpoint, and `--resume` goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, Protocol

from stream_rl.buffer import EmbeddedServer, ProcessRecord, RunRules, TrajectoryBuffer
from stream_rl.buffer.records import RecoveryKind
from stream_rl.config import Config
from stream_rl.errors import NoTrainableBatch, ProcessDied, RepeatedDeaths, StreamRLError, UserError
from stream_rl.external_engine import ExternalEngine
from stream_rl.heartbeats import patience, until_silent
from stream_rl.metrics.exporter import serve_metrics
from stream_rl.pinned_evaluation import PinnedEvaluations
from stream_rl.recording import Progress, RunRecorder

__all__ = ["DeathBudget", "Processes", "Supervisor"]

logger = logging.getLogger(__name__)

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


class Processes(Protocol):
    """Starts the run's processes; each call runs one of them until it ends, and ends it when it is cancelled.

    All raise ProcessDied, or the UserError or NoTrainableBatch that the process itself raised.
    """

    async def engine(self, index: int, up: Callable[[str, int], Awaitable[None]]) -> None:
        """Runs an SGLang server; awaits `up(url, pid)` once it answers. Ends only by its death."""

    async def producer(self, index: int) -> None:
        """Runs a producer until the run is finished or drained."""

    async def trainer(self) -> None:
        """Runs all ranks of the trainer until the last step or the drain."""

    async def evaluation(self, engine_id: str | None = None) -> float:
        """Plays the held-out episodes on that pinned engine, or on all; their mean reward."""


class DeathBudget:
    """Deaths by process kind since the last training step."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._step: dict[str, int] = {}
        self._deaths: dict[str, int] = {}

    def spend(self, kind: str, step: int, cause: str) -> None:
        """Records one death of `kind` while the ledger stands at `step`.

        Raises:
            RepeatedDeaths: this was the `limit`-th death of that kind without a step between them.
        """
        if self._step.get(kind) != step:
            self._step[kind] = step
            self._deaths[kind] = 0
        self._deaths[kind] += 1
        if self._deaths[kind] >= self.limit:
            raise RepeatedDeaths(
                f"{kind} died {self.limit} times at step {step} without progress "
                f"(supervision.max_deaths_without_progress={self.limit}); last cause: {cause}"
            )


class Supervisor:
    """One run, from its start to its summary."""

    def __init__(
        self,
        config: Config,
        buffer: TrajectoryBuffer,
        server: EmbeddedServer | None,
        processes: Processes,
        progress: Progress,
    ) -> None:
        self._config = config
        self._buffer = buffer
        self._server = server
        self._processes = processes
        self._progress = progress
        self._deaths = DeathBudget(config.supervision.max_deaths_without_progress)
        self._recorder = RunRecorder(config, buffer, progress)
        pause, start_timeout = config.supervision.heartbeat, config.engine.start_timeout
        self._external = [
            ExternalEngine(f"engine-{index}", url, buffer, progress.say, pause=pause, start_timeout=start_timeout)
            for index, url in enumerate(config.engine.urls)
        ]
        self._draining: asyncio.Task[None] | None = None
        self._ending = False
        self._interrupted = False
        self._evaluating: asyncio.Task[float] | None = None
        self._eval_reward: float | None = None

    async def run(self, buffer_url: str, *, resume: bool) -> dict[str, Any]:
        """Starts everything, waits for the trainer, evaluates, and writes summary.json and report.html.

        Returns:
            The summary, with `finished` added: False when the run was drained.

        Raises:
            UserError, NoTrainableBatch: from a process.
            RepeatedDeaths: a process could not be kept alive.
        """
        await self._buffer.open_run(RunRules.of(self._config))
        for engine in await self._buffer.engines():  # of an earlier session of this run
            await self._buffer.engine_left(engine.engine_id)
        metrics_url = serve_metrics(self._config.metrics.host, self._config.metrics.port)
        self._recorder.announce(buffer_url, metrics_url, resume=resume)
        await self._buffer.register_process(_process("supervisor", os.getpid(), metrics_url))
        if self._server is not None:
            await self._buffer.register_process(_process("redis", self._server.pid))
        for number in INTERRUPTS:
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)
        try:
            await self._keep_everything()
        except BaseExceptionGroup as group:
            raise _first_cause(group) from None
        finally:
            await self._recorder.record_outcomes()
        summary = await self._recorder.summarise(self._eval_reward)
        return {**summary, "finished": self._draining is None}

    async def _keep_everything(self) -> None:
        config = self._config
        async with asyncio.TaskGroup() as tasks:
            keepers = [tasks.create_task(self._recorder.watch())]
            if self._server is not None:
                keepers.append(tasks.create_task(self._keep("redis", self._redis)))
            for index in range(config.engine.servers):
                keepers.append(tasks.create_task(self._keep("engine", self._engine, index)))
            producers = [
                tasks.create_task(self._keep("producer", self._producer, index))
                for index in range(config.producer.count)
            ]
            evaluations = PinnedEvaluations(
                self._buffer, self._processes.evaluation, self._progress.say, pause=config.supervision.heartbeat
            )
            if config.evaluation.every and config.evaluation.episodes:
                keepers.append(tasks.create_task(evaluations.watch()))
            await self._keep("trainer", self._processes.trainer)
            if self._draining is None:
                await evaluations.finish(config.evaluation.deadline)
            self._ending = True
            if self._draining is None and config.evaluation.episodes:
                await self._evaluate()
            # Producers end by themselves once the buffer says that the run has ended or drains.
            await asyncio.wait(producers, timeout=config.producer.drain_seconds + config.producer.lease_seconds)
            for task in keepers + producers:
                task.cancel()

    async def _keep(self, kind: RecoveryKind, live: Callable[..., Awaitable[None]], *args: int) -> None:
        """Runs one process until it ends by itself; when it dies, counts the death and runs it again."""
        name = "-".join([kind, *map(str, args)])
        while True:
            try:
                return await live(*args)
            except (UserError, NoTrainableBatch):
                raise
            except StreamRLError as death:
                if self._ending:
                    logger.warning("%s ended while the run was ending: %s", name, death)
                    return None
                cause = str(death).partition("\n")[0]
                logger.error("%s died: %s", name, cause, exc_info=death)
                self._progress.say(f"{name} died, bringing it back: {cause}")
                self._deaths.spend(kind, self._recorder.ledger_steps, cause)
                await self._buffer.count_recovery(kind)

    async def _redis(self) -> None:
        """Watches the embedded server. It is up again before its death is told, since deaths are counted in it."""
        assert self._server is not None
        while self._server.alive:
            await asyncio.sleep(self._config.supervision.heartbeat)
        await asyncio.to_thread(self._server.start)
        await self._buffer.register_process(_process("redis", self._server.pid))
        raise ProcessDied("the embedded Valkey server ended")

    async def _engine(self, index: int) -> None:
        if self._external:
            return await self._external[index].live()
        name, joined = f"engine-{index}", asyncio.Event()

        async def up(url: str, pid: int) -> None:
            await self._buffer.engine_joined(name, url, pid)
            self._progress.say(f"{name} is up at {url}")
            joined.set()

        try:
            await _first_of(self._processes.engine(index, up), self._until_put_out(name, joined))
        finally:
            await self._buffer.engine_left(name)

    async def _until_put_out(self, name: str, joined: asyncio.Event) -> None:
        """Raises ProcessDied when the trainer has taken an engine off the list: it did not take a version."""
        await joined.wait()
        while any(engine.engine_id == name for engine in await self._buffer.engines()):
            await asyncio.sleep(self._config.supervision.heartbeat)
        raise ProcessDied("it did not take a weight update, the trainer's log has the reason")

    async def _producer(self, index: int) -> None:
        """Runs a producer; one that hangs is ended as if it had died."""
        seconds = patience(self._config.producer.lease_seconds)
        silent = until_silent(
            self._buffer, f"producer-{index}", seconds=seconds, pause=self._config.supervision.heartbeat
        )
        await _first_of(self._processes.producer(index), silent)

    async def _evaluate(self) -> None:
        self._progress.say(f"evaluating {self._config.evaluation.episodes} held-out episodes")
        evaluating = self._evaluating = asyncio.ensure_future(self._processes.evaluation())
        try:
            await asyncio.wait([evaluating])
        finally:
            evaluating.cancel()
        if evaluating.cancelled():
            return
        try:
            self._eval_reward = evaluating.result()
        except StreamRLError as error:
            logger.error("the evaluation failed", exc_info=error)
            self._progress.say(f"the evaluation failed, the training stands: {error}")

    def _interrupt(self) -> None:
        if self._interrupted:
            for number in INTERRUPTS:  # a third would break off the ending of the processes
                asyncio.get_running_loop().remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
            raise KeyboardInterrupt
        self._interrupted = self._ending = True
        if self._evaluating is not None:
            self._progress.say("leaving out the evaluation, the training stands (again: stop at once)")
            self._evaluating.cancel()
            return
        self._progress.say("draining: committing open turns and writing a checkpoint (again: stop at once)")
        self._draining = asyncio.ensure_future(self._buffer.drain_run())


async def _first_of(*lives: Coroutine[Any, Any, None]) -> None:
    """Awaits whichever ends first, and ends the others. Raises what it raised."""
    ends = [asyncio.create_task(life) for life in lives]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            if end.done():
                await end
    finally:
        for end in ends:
            end.cancel()
        await asyncio.wait(ends)


def _process(kind: Literal["supervisor", "redis"], pid: int, metrics_url: str = "") -> ProcessRecord:
    return ProcessRecord(kind, kind, socket.gethostname(), pid, metrics_url)


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_cause(first) if isinstance(first, BaseExceptionGroup) else first
