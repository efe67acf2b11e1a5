"""Starts and supervises the processes of a run. The only file that knows Ray.

    train ── Supervisor (asyncio, this process)
               ├── keep redis        EmbeddedServer     unless buffer.url names one
               ├── keep engine-i     EngineProcess      one SGLang server
               ├── keep producer-i   ProducerProcess    hundreds of turn loops
               ├── keep trainer      TrainerProcess     world_size ranks; one rank's death ends all of them
               └── watch             progress, ended samples -> samples.jsonl

A keeper brings its process back when it dies, counts the recovery in the buffer, and gives up when a `DeathBudget`
says that it does not help. A `UserError` or `NoTrainableBatch` of any process ends the run at once with its message.
Ctrl-C asks the buffer to drain: producers commit and release, the trainer writes a checkpoint, and `--resume` goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import orjson
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from stream_rl.buffer import EmbeddedServer, ProcessRecord, RunRules, RunSnapshot, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.errors import NoTrainableBatch, StreamRLError, UserError
from stream_rl.metrics import catalog
from stream_rl.metrics.exporter import serve_metrics
from stream_rl.metrics.report import write_report
from stream_rl.metrics.summary import RunFacts, summarise
from stream_rl.metrics.turn_log import JsonLines, Tail
from stream_rl.supervision import DeathBudget

__all__ = ["Progress", "train"]

log = logging.getLogger(__name__)

DEADLINE_OF_A_STOP = 30.0


class Progress(Protocol):
    """What the command line shows while a run goes on."""

    def update(self, snapshot: RunSnapshot, steps: Sequence[Mapping[str, Any]]) -> None:
        """Called about twice a second, with the lines of steps.jsonl written since the last call."""

    def say(self, line: str) -> None:
        """One thing that happened: a start, a death, a recovery."""


def train(config: Config, *, resume: bool, progress: Progress) -> dict[str, Any]:
    """Runs `config` to its last step, or to Ctrl-C.

    Returns:
        The run's summary, as in summary.json, with `finished` added: False when the run was drained.

    Raises:
        UserError: something the user wrote, found by a process.
        RepeatedDeaths: a process could not be kept alive.
    """
    folder = config.folder
    for name in ("logs", "turns", "weights", "checkpoints"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config.dump())
    _log_to(folder / "logs" / "supervisor.log", redirect=False)
    ray.init(
        address=config.supervision.ray_address,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        **({"object_store_memory": 100_000_000} if config.supervision.ray_address == "local" else {}),
    )
    try:
        return asyncio.run(_run(config, resume, progress))
    finally:
        ray.shutdown()


async def _run(config: Config, resume: bool, progress: Progress) -> dict[str, Any]:
    server = None
    url = config.buffer.url
    if url is None:
        server = EmbeddedServer(config.folder / "buffer", fsync=config.buffer.fsync)
        await asyncio.to_thread(server.start)
        url = server.url
    try:
        buffer = await TrajectoryBuffer.connect(
            url, config.name, password=os.environ.get(config.buffer.password_env), timeout=config.buffer.timeout
        )
        try:
            return await Supervisor(config, buffer, url, server, progress).run(resume)
        finally:
            await buffer.close()
    finally:
        if server is not None:
            await asyncio.to_thread(server.stop)


class Supervisor:
    """Keeps one run's processes alive until the trainer has done its last step."""

    def __init__(
        self,
        config: Config,
        buffer: TrajectoryBuffer,
        buffer_url: str,
        server: EmbeddedServer | None,
        progress: Progress,
    ) -> None:
        self.config = config
        self.buffer = buffer
        self.buffer_url = buffer_url
        self.server = server
        self.progress = progress
        self._deaths = DeathBudget(config.supervision.max_deaths_without_progress)
        self._snapshot: RunSnapshot | None = None
        self._draining = False
        self._ending = False
        self._eval_reward: float | None = None
        self._started = time.monotonic()
        self._samples = JsonLines(config.folder / "samples.jsonl")
        self._steps = Tail(config.folder / "steps.jsonl")

    async def run(self, resume: bool) -> dict[str, Any]:
        """Starts everything, waits for the trainer, evaluates, and writes summary.json and report.html."""
        await self.buffer.open_run(RunRules.of(self.config))
        metrics_url = serve_metrics(self.config.metrics.host, self.config.metrics.port)
        _announce(self.config.folder, self.buffer_url, metrics_url)
        await self.buffer.register_process(
            ProcessRecord("supervisor", "supervisor", socket.gethostname(), os.getpid(), metrics_url)
        )
        earlier = _wall_seconds_before(self.config.folder) if resume else 0.0
        self._listen_for_interrupts()
        try:
            async with asyncio.TaskGroup() as tasks:
                keepers = self._start_keepers(tasks)
                await self._keep("trainer", self._trainer)
                self._ending = True
                if not self._draining and self.config.evaluation.episodes:
                    await self._evaluate()
                await self._end(keepers)
        except BaseExceptionGroup as group:
            raise _first_cause(group) from None
        finally:
            await self._record_outcomes()
        return await self._summarise(earlier)

    def _start_keepers(self, tasks: asyncio.TaskGroup) -> dict[str, asyncio.Task[None]]:
        config = self.config
        keepers = {"watch": tasks.create_task(self._watch())}
        if self.server is not None:
            keepers["redis"] = tasks.create_task(self._keep("redis", self._redis))
        for index in range(len(config.engine.urls) or config.engine.count):
            live = self._external_engine if config.engine.urls else self._engine
            keepers[f"engine-{index}"] = tasks.create_task(self._keep("engine", live, index))
        for index in range(config.producer.count):
            keepers[f"producer-{index}"] = tasks.create_task(self._keep("producer", self._producer, index))
        return keepers

    async def _keep(self, kind: str, live: Callable[..., Awaitable[None]], *args: int) -> None:
        """Runs one process until it ends by itself; when it dies, counts the death and runs it again."""
        name = "-".join([kind, *map(str, args)])
        while True:
            try:
                await live(*args)
            except (UserError, NoTrainableBatch):
                raise
            except (RayError, StreamRLError) as death:
                if self._ending:
                    return
                cause = str(death).strip().splitlines()[-1] if isinstance(death, RayError) else str(death)
                log.error("%s died: %s", name, death)
                self.progress.say(f"{name} died, bringing it back: {cause}")
                self._deaths.spend(kind, self._snapshot.ledger_steps if self._snapshot else 0, cause)
                await self.buffer.count_recovery(kind)
                catalog.RECOVERIES.inc(process=kind)
            else:
                return

    async def _redis(self) -> None:
        assert self.server is not None
        if not self.server.alive:
            await asyncio.to_thread(self.server.start)
        while self.server.alive:
            await asyncio.sleep(self.config.supervision.heartbeat)
        raise StreamRLError("the embedded Valkey server ended")

    async def _engine(self, index: int) -> None:
        name = f"engine-{index}"
        gpus = 1 if self.config.engine.device == "cuda" else 0
        actor = EngineProcess.options(num_cpus=0, num_gpus=gpus).remote(self.config, index)  # type: ignore[attr-defined]
        try:
            url, pid = await actor.start.remote()
            await self.buffer.engine_joined(name, url, pid)
            self.progress.say(f"{name} is up at {url}")
            await actor.wait.remote()
        finally:
            await self._forget(name, actor)

    async def _external_engine(self, index: int) -> None:
        name, url = f"engine-{index}", self.config.engine.urls[index]
        while True:
            if name not in {engine.engine_id for engine in await self.buffer.engines()}:
                await self.buffer.engine_joined(name, url, 0)
            await asyncio.sleep(self.config.supervision.heartbeat)

    async def _producer(self, index: int) -> None:
        actor = ProducerProcess.options(num_cpus=0).remote(  # type: ignore[attr-defined]
            self.config, f"producer-{index}", self.buffer_url
        )
        try:
            await actor.run.remote()
        finally:
            ray.kill(actor)

    async def _trainer(self) -> None:
        size = self.config.trainer.world_size
        gpus = 1 if self.config.trainer.device == "cuda" else 0
        init_method = f"tcp://127.0.0.1:{_free_port()}"
        ranks = [
            TrainerProcess.options(num_cpus=0, num_gpus=gpus).remote(  # type: ignore[attr-defined]
                self.config, rank, init_method, self.buffer_url
            )
            for rank in range(size)
        ]
        try:
            await asyncio.gather(*[_result(rank.run.remote()) for rank in ranks])
        finally:
            for rank in ranks:
                ray.kill(rank)

    async def _evaluate(self) -> None:
        self.progress.say(f"evaluating {self.config.evaluation.episodes} held-out episodes")
        actor = ProducerProcess.options(num_cpus=0).remote(  # type: ignore[attr-defined]
            self.config, "evaluation", self.buffer_url
        )
        try:
            self._eval_reward = await actor.evaluate.remote()
        except (RayError, StreamRLError) as error:
            log.error("the evaluation failed: %s", error)
            self.progress.say(f"the evaluation failed, the training stands: {type(error).__name__}")
        finally:
            ray.kill(actor)

    async def _end(self, keepers: dict[str, asyncio.Task[None]]) -> None:
        """Producers end by themselves once the buffer says so; whatever is left after a while is cancelled."""
        producers = [task for name, task in keepers.items() if name.startswith("producer")]
        await asyncio.wait(producers, timeout=self.config.producer.drain_seconds + self.config.producer.lease_seconds)
        for task in keepers.values():
            task.cancel()

    async def _forget(self, engine_id: str, actor: ActorHandle) -> None:
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(DEADLINE_OF_A_STOP):
                await actor.stop.remote()
        ray.kill(actor)
        await self.buffer.engine_left(engine_id)

    async def _watch(self) -> None:
        while True:
            self._snapshot = await self.buffer.snapshot()
            self.progress.update(self._snapshot, self._steps.new())
            _export(self._snapshot)
            await self._record_outcomes()
            await asyncio.sleep(self.config.supervision.heartbeat)

    async def _record_outcomes(self) -> None:
        """Moves the ends of samples from the buffer to samples.jsonl; written before they are trimmed."""
        while outcomes := await self.buffer.outcomes(1000):
            self._samples.extend(asdict(outcome) for outcome in outcomes)
            await self.buffer.trim_outcomes(outcomes[-1].number)

    async def _summarise(self, earlier: float) -> dict[str, Any]:
        snapshot = await self.buffer.snapshot()
        facts = RunFacts(
            recoveries=snapshot.recoveries,
            committed_turns=snapshot.committed_turns,
            journal_turns=await self.buffer.journal_turns(),
            eval_reward=self._eval_reward,
            wall_seconds=earlier + time.monotonic() - self._started,
        )
        summary = summarise(self.config.folder, facts)
        write_report(self.config.folder)
        return {**summary, "finished": not self._draining}

    def _listen_for_interrupts(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)

    def _interrupt(self) -> None:
        if self._draining:
            raise KeyboardInterrupt
        self._draining = self._ending = True
        self.progress.say("draining: committing open turns and writing a checkpoint (again: stop at once)")
        self._drain = asyncio.ensure_future(self.buffer.drain_run())


@ray.remote(max_restarts=0, max_concurrency=4)
class EngineProcess:
    """Holds one SGLang server, which runs in a process session of its own."""

    def __init__(self, config: Config, index: int) -> None:
        from stream_rl.engine.server import EngineServer

        _log_to(config.folder / "logs" / f"engine-{index}.actor.log")
        self.server = EngineServer.from_config(config, index, log_path=config.folder / "logs" / f"engine-{index}.log")

    def start(self) -> tuple[str, int]:
        """Starts the server and waits until it answers."""
        self.server.start()
        self.server.wait_ready()
        return self.server.url, self.server.pid

    def wait(self) -> None:
        """Returns never; raises EngineUnavailable when the server ends."""
        self.server.wait_exit()

    def stop(self) -> None:
        """Ends the server's whole process session."""
        self.server.stop()


@ray.remote(max_restarts=0)
class ProducerProcess:
    """One producer: an asyncio process with hundreds of turn loops."""

    def __init__(self, config: Config, producer_id: str, buffer_url: str) -> None:
        _log_to(config.folder / "logs" / f"{producer_id}.log")
        self.config, self.producer_id, self.buffer_url = config, producer_id, buffer_url
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Runs turn loops until the run is finished or drained."""
        from stream_rl.producer.worker import run_producer

        await run_producer(
            self.config, producer_id=self.producer_id, buffer_url=self.buffer_url, stop=self.stopping
        )

    async def evaluate(self) -> float:
        """Mean reward of the held-out episodes."""
        from stream_rl.producer.evaluation import evaluate

        result = await evaluate(self.config, buffer_url=self.buffer_url)
        log.info("evaluation: %s", result)
        return result.mean_reward


@ray.remote(max_restarts=0)
class TrainerProcess:
    """One rank of the trainer."""

    def __init__(self, config: Config, rank: int, init_method: str, buffer_url: str) -> None:
        _log_to(config.folder / "logs" / f"trainer-{rank}.log")
        self.config, self.rank, self.init_method, self.buffer_url = config, rank, init_method, buffer_url

    def run(self) -> None:
        """Trains to the last step, or to the drain."""
        from stream_rl.consumer.trainer import run_trainer

        run_trainer(
            self.config,
            rank=self.rank,
            world_size=self.config.trainer.world_size,
            init_method=self.init_method,
            buffer_url=self.buffer_url,
        )


def _announce(folder: Path, buffer_url: str, metrics_url: str) -> None:
    """Writes run.json, by which `stream-rl status` finds a live run."""
    record = {"pid": os.getpid(), "started": time.time(), "buffer_url": buffer_url, "metrics_url": metrics_url}
    (folder / "run.json").write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2))


def _wall_seconds_before(folder: Path) -> float:
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


async def _result(reference: Any) -> Any:
    return await reference


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _log_to(path: Path, redirect: bool = True) -> None:
    """Sends this process's log, and with `redirect` everything it prints, to a file of the run."""
    if redirect:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
    handler = logging.StreamHandler() if redirect else logging.FileHandler(path)
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, handlers=[handler], force=True)
