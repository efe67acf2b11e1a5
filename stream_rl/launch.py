"""Runs a training run's processes as Ray actors. The only file that knows Ray.

Each actor is a thin shell around a plain function or class of its room, writes everything it prints into its own file
under RUN/logs/, and is never restarted by Ray: the `Supervisor` decides that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from stream_rl.buffer import EmbeddedServer, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.engine.ports import HOST, free_port
from stream_rl.errors import ConfigError, NoTrainableBatch, ProcessDied, RankLost, UserError
from stream_rl.metrics.logs import log_formatter
from stream_rl.producer.prompts import prompt_basis
from stream_rl.rank_failures import all_ranks
from stream_rl.recording import Progress
from stream_rl.run_lock import run_lock
from stream_rl.supervision import Supervisor

__all__ = ["train"]

logger = logging.getLogger(__name__)

PLACE_SECONDS = 120.0
STOP_SECONDS = 30.0
EVALUATION_START_SECONDS = 300.0
"""What an evaluation may take beside its episodes: a place, the imports, the tokenizer, the prompts."""
OBJECT_STORE_BYTES = 100_000_000
"""Actors only exchange settings and exit codes; trajectories go through the buffer."""


def train(config: Config, *, resume: bool, progress: Progress) -> dict[str, Any]:
    """Runs `config` to its last step, or until an interrupt has drained it.

    Returns:
        The run's summary, as in summary.json, with `finished` added: False when the run was drained.

    Raises:
        UserError: something the user wrote, found by a process.
        RepeatedDeaths: a process could not be kept alive.
    """
    local = config.supervision.ray_address == "local"
    os.environ.setdefault("RAY_worker_niceness", "0")  # the run is what the machine is for
    try:
        ray.init(
            address=config.supervision.ray_address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=OBJECT_STORE_BYTES if local else None,
        )
    except (ConnectionError, ValueError) as error:
        raise ConfigError(
            f"supervision.ray_address={config.supervision.ray_address!r} cannot be used ({error}): start that cluster, "
            "or set it to local"
        ) from error
    try:
        _make_folder(config.folder)
        with run_lock(config.folder):
            if not resume:
                _write_settings(config)
            _log_to(config, "supervisor")
            return asyncio.run(_run(config, resume, progress))
    finally:
        ray.shutdown()


def _make_folder(folder: Path) -> None:
    try:
        for name in ("logs", "turns", "weights", "checkpoints"):
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run={folder} cannot be made ({error.strerror}): name another folder") from error


def _write_settings(config: Config) -> None:
    (config.folder / "config.yaml").write_text(config.dump())


async def _run(config: Config, resume: bool, progress: Progress) -> dict[str, Any]:
    with _buffer_server(config) as (server, url):
        async with await TrajectoryBuffer.of(config, url) as buffer:
            await buffer.settle_prompts(await asyncio.to_thread(prompt_basis, config))
            _write_settings(config)  # of a resumed run: only now is it known not to be refused
            supervisor = Supervisor(config, buffer, server, RayProcesses(config, url), progress)
            return await supervisor.run(url, resume=resume)


@contextlib.contextmanager
def _buffer_server(config: Config) -> Iterator[tuple[EmbeddedServer | None, str]]:
    if config.buffer.url is not None:
        yield None, config.buffer.url
        return
    with EmbeddedServer(config.folder / "buffer", fsync=config.buffer.fsync) as server:
        yield server, server.url


class RayProcesses:
    """The run's processes as actors: see `Processes`."""

    def __init__(self, config: Config, buffer_url: str) -> None:
        self._config = config
        self._buffer_url = buffer_url
        self._gpus = _gpu_share(config, ray.cluster_resources().get("GPU", 0.0))  # type: ignore[no-untyped-call]

    async def engine(self, index: int, up: Callable[[str, int], Awaitable[None]]) -> None:
        """Runs an SGLang server in an actor; cancelled, it ends the server's whole process session."""
        gpus = 0.0 if self._config.engine.device == "cpu" else self._gpus
        async with _actor(EngineProcess, self._config, index, gpus=gpus, threads=3) as actor:
            try:
                await up(*await _result(actor.start))
                await _result(actor.wait)
            finally:
                # An actor that is gone or hangs is killed next, and its server's guard ends with it.
                with contextlib.suppress(ProcessDied, TimeoutError):
                    async with asyncio.timeout(STOP_SECONDS):
                        await _result(actor.stop)

    async def producer(self, index: int) -> None:
        """Runs a producer in an actor."""
        async with _actor(ProducerProcess, self._config, f"producer-{index}", self._buffer_url) as actor:
            await _result(actor.run)

    async def trainer(self) -> None:
        """Runs each rank in an actor; all end with the first, and what is raised is what ended that one."""
        config, url = self._config, self._buffer_url
        gpus = 0.0 if config.trainer.device == "cpu" else self._gpus
        init_method = f"tcp://{HOST}:{free_port()}"
        async with contextlib.AsyncExitStack() as ranks:
            actors = [
                await ranks.enter_async_context(_actor(TrainerProcess, config, rank, init_method, url, gpus=gpus))
                for rank in range(config.trainer.world_size)
            ]
            await all_ranks([_result(actor.run) for actor in actors])

    async def evaluation(self, engine_id: str | None = None) -> float:
        """Plays the held-out episodes in an actor of their own; on that pinned engine, or on all."""
        seconds = self._config.evaluation.deadline + EVALUATION_START_SECONDS
        try:
            async with (
                asyncio.timeout(seconds),
                _actor(ProducerProcess, self._config, "evaluation", self._buffer_url) as actor,
            ):
                return float(await _result(actor.evaluate, engine_id))
        except TimeoutError:
            raise ProcessDied(f"it did not end within evaluation.deadline and {EVALUATION_START_SECONDS:g} s") from None


class EngineProcess:
    """Holds one SGLang server, which runs in a process session of its own."""

    def __init__(self, config: Config, index: int) -> None:
        from stream_rl.engine.server import EngineServer

        _print_to(config, f"engine-{index}.actor")
        self._server = EngineServer.from_config(config, index, log_path=config.folder / "logs" / f"engine-{index}.log")

    def start(self) -> tuple[str, int]:
        """Starts the server and waits until it answers; its URL and process id."""
        self._server.start()
        self._server.wait_ready()
        return self._server.url, self._server.pid

    def wait(self) -> None:
        """Raises EngineUnavailable when the server ends."""
        self._server.wait_exit()

    def stop(self) -> None:
        """Ends the server's whole process session."""
        self._server.stop()


class ProducerProcess:
    """One producer: an asyncio process with hundreds of turn loops."""

    def __init__(self, config: Config, producer_id: str, buffer_url: str) -> None:
        _print_to(config, producer_id)
        self._config, self._producer_id, self._buffer_url = config, producer_id, buffer_url

    async def run(self) -> None:
        """Runs turn loops until the run is finished or drained."""
        from stream_rl.producer.worker import run_producer

        await run_producer(
            self._config, producer_id=self._producer_id, buffer_url=self._buffer_url, stop=asyncio.Event()
        )

    async def evaluate(self, engine_id: str | None) -> float:
        """Mean reward of the held-out episodes."""
        from stream_rl.producer.evaluation import evaluate

        result = await evaluate(self._config, buffer_url=self._buffer_url, engine_id=engine_id)
        logger.info("%s", result)
        return result.mean_reward


class TrainerProcess:
    """One rank of the trainer."""

    def __init__(self, config: Config, rank: int, init_method: str, buffer_url: str) -> None:
        _print_to(config, f"trainer-{rank}")
        self._config, self._rank, self._init_method, self._buffer_url = config, rank, init_method, buffer_url

    def run(self) -> None:
        """Trains to the last step, or to the drain."""
        from stream_rl.consumer.trainer import run_trainer

        run_trainer(
            self._config,
            rank=self._rank,
            world_size=self._config.trainer.world_size,
            init_method=self._init_method,
            buffer_url=self._buffer_url,
        )


def _gpu_share(config: Config, available: float) -> float:
    """GPUs for each started engine and each trainer rank: one, or an equal part of one where there are too few."""
    engines = 0 if config.engine.urls or config.engine.device == "cpu" else config.engine.count
    ranks = 0 if config.trainer.device == "cpu" else config.trainer.world_size
    if not available or not engines + ranks:
        return 0.0
    return 1.0 / math.ceil((engines + ranks) / available)


@contextlib.asynccontextmanager
async def _actor(kind: type, *args: Any, gpus: float = 0.0, threads: int = 1) -> AsyncIterator[Any]:
    """An actor that is killed on leaving. It reserves no CPU: the processes of a run share the machine.

    Raises:
        ProcessDied: Ray found no place for it, or it ended, before it was there.
    """
    options = {"num_cpus": 0, "num_gpus": gpus, "max_restarts": 0}
    if threads > 1:
        options["max_concurrency"] = threads
    actor = ray.remote(**options)(kind).remote(*args)  # type: ignore[call-overload]
    try:
        try:
            async with asyncio.timeout(PLACE_SECONDS):
                await _result(actor.__ray_ready__)
        except TimeoutError as error:
            raise ProcessDied(
                f"Ray did not place a {kind.__name__} ({gpus:g} GPUs) within {PLACE_SECONDS:g} s: see engine.device, "
                "engine.count, trainer.device and trainer.world_size"
            ) from error
        yield actor
    finally:
        ray.kill(actor)


async def _result(method: Any, *arguments: Any) -> Any:
    """Awaits an actor's method.

    Raises:
        UserError, NoTrainableBatch, RankLost: as the actor raised them.
        ProcessDied: the actor raised anything else, or is gone.
    """
    try:
        return await method.remote(*arguments)
    except RayTaskError as error:
        if isinstance(error.cause, UserError | NoTrainableBatch | RankLost):
            raise error.cause from None
        raise ProcessDied(f"{type(error.cause).__name__}: {error.cause}") from error
    except RayError as error:
        raise ProcessDied(f"{type(error).__name__}: killed or crashed, its log is in the run folder") from error


def _print_to(config: Config, process: str) -> None:
    """Sends everything this process prints, and its log, to a file of the run."""
    path = config.folder / "logs" / f"{process}.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    _log_to(config, process)


def _log_to(config: Config, process: str) -> None:
    handler = logging.FileHandler(config.folder / "logs" / f"{process}.log")
    handler.setFormatter(log_formatter(config.name, process, json=config.metrics.json_logs))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
