"""Keeps one run's processes alive until the trainer has done its last step. Knows no Ray: `Processes` starts them.

    Supervisor (asyncio, the command's own process)
      ├── keep redis        the embedded server, unless buffer.url names one
      ├── keep engine-i     one SGLang server
      ├── keep producer-i   hundreds of turn loops
      ├── keep trainer      world_size ranks; one rank's death ends all of them
      └── watch             progress, ended samples -> samples.jsonl

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
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import orjson

from stream_rl.buffer import EmbeddedServer, ProcessRecord, RunRules, RunSnapshot, TrajectoryBuffer
from stream_rl.buffer.records import RecoveryKind
from stream_rl.config import Config
from stream_rl.errors import NoTrainableBatch, ProcessDied, RepeatedDeaths, StreamRLError, UserError
from stream_rl.metrics import catalog
from stream_rl.metrics.exporter import serve_metrics
from stream_rl.metrics.report import write_report
from stream_rl.metrics.summary import RunFacts, summarise
from stream_rl.metrics.turn_log import JsonLines, Tail

__all__ = ["DeathBudget", "Processes", "Progress", "Supervisor"]

log = logging.getLogger(__name__)

OUTCOMES_PER_CALL = 1000


class Progress(Protocol):
    """What the command line shows while a run goes on."""

    def update(self, snapshot: RunSnapshot, steps: Sequence[Mapping[str, Any]]) -> None:
        """Called every `supervision.heartbeat`, with the lines of steps.jsonl written since the last call."""

    def say(self, line: str) -> None:
        """One thing that happened: a start, a death, a recovery."""


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

    async def evaluation(self) -> float:
        """Plays the held-out episodes; their mean reward."""


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
        self._samples = JsonLines(config.folder / "samples.jsonl")
        self._steps = Tail(config.folder / "steps.jsonl")
        self._snapshot: RunSnapshot | None = None
        self._draining: asyncio.Task[None] | None = None
        self._ending = False
        self._eval_reward: float | None = None

    async def run(self, buffer_url: str, *, resume: bool) -> dict[str, Any]:
        """Starts everything, waits for the trainer, evaluates, and writes summary.json and report.html.

        Returns:
            The summary, with `finished` added: False when the run was drained.

        Raises:
            UserError, NoTrainableBatch: from a process.
            RepeatedDeaths: a process could not be kept alive.
        """
        started = time.monotonic() - (_seconds_before(self._config.folder) if resume else 0.0)
        await self._buffer.open_run(RunRules.of(self._config))
        for engine in await self._buffer.engines():  # of an earlier session of this run
            await self._buffer.engine_left(engine.engine_id)
        metrics_url = serve_metrics(self._config.metrics.host, self._config.metrics.port)
        _announce(self._config.folder, buffer_url, metrics_url, time.monotonic() - started)
        await self._buffer.register_process(_process("supervisor", os.getpid(), metrics_url))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)
        try:
            await self._keep_everything()
        except BaseExceptionGroup as group:
            raise _first_cause(group) from None
        finally:
            await self._record_outcomes()
        return await self._summarise(started)

    async def _keep_everything(self) -> None:
        config = self._config
        async with asyncio.TaskGroup() as tasks:
            keepers = [tasks.create_task(self._watch())]
            if self._server is not None:
                keepers.append(tasks.create_task(self._keep("redis", self._redis)))
            for index in range(len(config.engine.urls) or config.engine.count):
                keepers.append(tasks.create_task(self._keep("engine", self._engine, index)))
            producers = [
                tasks.create_task(self._keep("producer", self._processes.producer, index))
                for index in range(config.producer.count)
            ]
            await self._keep("trainer", self._processes.trainer)
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
                    log.warning("%s ended while the run was ending: %s", name, death)
                    return None
                log.error("%s died", name, exc_info=death)
                self._progress.say(f"{name} died, bringing it back: {death}")
                self._deaths.spend(kind, self._snapshot.ledger_steps if self._snapshot else 0, str(death))
                await self._buffer.count_recovery(kind)
                catalog.RECOVERIES.inc(process=kind)

    async def _redis(self) -> None:
        assert self._server is not None
        if not self._server.alive:
            await asyncio.to_thread(self._server.start)
        await self._buffer.register_process(_process("redis", self._server.pid))
        while self._server.alive:
            await asyncio.sleep(self._config.supervision.heartbeat)
        raise ProcessDied("the embedded Valkey server ended")

    async def _engine(self, index: int) -> None:
        name, urls = f"engine-{index}", self._config.engine.urls
        if urls:
            return await self._external_engine(name, urls[index])
        joined = asyncio.Event()

        async def up(url: str, pid: int) -> None:
            await self._buffer.engine_joined(name, url, pid)
            self._progress.say(f"{name} is up at {url}")
            joined.set()

        ends = [
            asyncio.create_task(self._processes.engine(index, up)),
            asyncio.create_task(self._until_put_out(name, joined)),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                if end.done():
                    await end
        finally:
            for end in ends:
                end.cancel()
            await asyncio.wait(ends)
            await self._buffer.engine_left(name)

    async def _until_put_out(self, name: str, joined: asyncio.Event) -> None:
        """Raises ProcessDied when the trainer has taken an engine off the list: it did not take a version."""
        await joined.wait()
        while any(engine.engine_id == name for engine in await self._buffer.engines()):
            await asyncio.sleep(self._config.supervision.heartbeat)
        raise ProcessDied("it did not take a weight update, the trainer's log has the reason")

    async def _external_engine(self, name: str, url: str) -> None:
        """Joins a server that others run; again whenever the trainer has put it out for a failed update."""
        while True:
            if all(engine.engine_id != name for engine in await self._buffer.engines()):
                await self._buffer.engine_joined(name, url, 0)
            await asyncio.sleep(self._config.supervision.heartbeat)

    async def _evaluate(self) -> None:
        self._progress.say(f"evaluating {self._config.evaluation.episodes} held-out episodes")
        try:
            self._eval_reward = await self._processes.evaluation()
        except StreamRLError as error:
            log.error("the evaluation failed", exc_info=error)
            self._progress.say(f"the evaluation failed, the training stands: {error}")

    async def _watch(self) -> None:
        while True:
            self._snapshot = await self._buffer.snapshot()
            self._progress.update(self._snapshot, self._steps.new())
            _export(self._snapshot)
            await self._record_outcomes()
            await asyncio.sleep(self._config.supervision.heartbeat)

    async def _record_outcomes(self) -> None:
        """Moves the ends of samples from the buffer to samples.jsonl; written before they are trimmed."""
        while outcomes := await self._buffer.outcomes(OUTCOMES_PER_CALL):
            self._samples.extend(outcomes)
            await self._buffer.trim_outcomes(outcomes[-1].number)

    async def _summarise(self, started: float) -> dict[str, Any]:
        snapshot = await self._buffer.snapshot()
        self._progress.update(snapshot, self._steps.new())
        facts = RunFacts(
            recoveries=snapshot.recoveries,
            committed_turns=snapshot.committed_turns,
            journal_turns=await self._buffer.journal_turns(),
            eval_reward=self._eval_reward,
            wall_seconds=time.monotonic() - started,
        )
        summary = summarise(self._config.folder, facts)
        write_report(self._config.folder)
        return {**summary, "finished": self._draining is None}

    def _interrupt(self) -> None:
        if self._draining is not None:
            raise KeyboardInterrupt
        self._ending = True
        self._progress.say("draining: committing open turns and writing a checkpoint (again: stop at once)")
        self._draining = asyncio.ensure_future(self._buffer.drain_run())


def _process(kind: Literal["supervisor", "redis"], pid: int, metrics_url: str = "") -> ProcessRecord:
    return ProcessRecord(kind, kind, socket.gethostname(), pid, metrics_url)


def _announce(folder: Path, buffer_url: str, metrics_url: str, seconds_before: float) -> None:
    """Writes run.json, by which `stream-rl status` finds a live run."""
    record = {
        "pid": os.getpid(), "started": time.time(), "seconds_before": seconds_before, "buffer_url": buffer_url,
        "metrics_url": metrics_url,
    }  # fmt: skip
    (folder / "run.json").write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2))


def _seconds_before(folder: Path) -> float:
    summary = folder / "summary.json"
    return float(orjson.loads(summary.read_bytes())["wall_seconds"]) if summary.exists() else 0.0


def _export(snapshot: RunSnapshot) -> None:
    for state in ("live", "complete", "trained", "filtered", "dead_lettered"):
        catalog.GROUPS.set(getattr(snapshot, state), state=state)
    for state in ("pending", "leased", "resumable"):
        catalog.SAMPLES.set(getattr(snapshot, state), state=state)
    for engine in snapshot.engines:
        if engine.version is not None:
            catalog.ENGINE_VERSION.set(engine.version.step, engine=engine.engine_id)


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_cause(first) if isinstance(first, BaseExceptionGroup) else first
