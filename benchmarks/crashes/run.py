"""One run of the pipeline under deaths of one kind, from its first turn to its last group trained."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from crashes.account import Account, account
from crashes.pipeline import ENGINE, PRODUCERS, kill, produce, serve_engine, settings, train
from stream_rl.buffer import EmbeddedServer, RunRules, RunSnapshot, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.sample import WeightVersion

SHORTEST, LONGEST = 0.05, 0.5
"""Seconds of work between a victim's return and its next death."""
RETURN_SECONDS = 60.0
END_SECONDS = 120.0
WATCH_SECONDS = 0.02
FSYNC_SECONDS = 1.0
"""What a power cut may take from a server with appendfsync everysec."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["stream_rl.producer.worker", "stream_rl.models.tiny_text"])


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of death: who dies, under which fsync mode, whether unsynced writes go too, and the trainer with them."""

    name: str
    victim: Literal["producer", "trainer", "redis"]
    fsync: Literal["always", "everysec"]
    power_cut: bool = False
    trainer_too: bool = False


KINDS = (
    Kind("producer", "producer", "everysec"),
    Kind("trainer", "trainer", "everysec"),
    Kind("redis, always", "redis", "always"),
    Kind("redis, everysec", "redis", "everysec"),
    Kind("redis, everysec, power cut", "redis", "everysec", power_cut=True),
    Kind("redis and trainer, everysec, power cut", "redis", "everysec", power_cut=True, trainer_too=True),
)


class NotBack(Exception):
    """A process did not work again in time after a death."""


class Run:
    """The supervisor of one run. A context manager: no process outlives it."""

    def __init__(self, kind: Kind, folder: Path, model: Path, seed: int) -> None:
        self.kind = kind
        self._random = random.Random(f"{seed} {kind.name}")
        self._seed = seed
        self._tree = settings(folder / "run", model)
        self._config = Config.parse(self._tree)
        self._server = EmbeddedServer(folder / "redis", fsync=kind.fsync)
        self._logs = [self._config.folder / "turns" / f"{name}.jsonl" for name in PRODUCERS]
        self._trained = self._config.folder / "trained.jsonl"
        self._processes: dict[str, BaseProcess] = {}
        self._engine_url = ""
        self._synced: deque[tuple[float, dict[Path, int]]] = deque()
        self._deaths: list[float] = []
        self._cut = 0.0

    def __enter__(self) -> Run:
        self._config.folder.mkdir(parents=True)
        self._server.start()
        here, there = CONTEXT.Pipe()
        self._start("engine", serve_engine, self._seed, there)
        if not here.poll(RETURN_SECONDS):
            raise NotBack(f"the engine did not start within {RETURN_SECONDS:g} s")
        self._engine_url = here.recv()
        self._ask(self._open)
        for name in (*PRODUCERS, "trainer"):
            self._bring_back(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()
        self._server.stop()

    def meet(self, deaths: int) -> Account:
        """`deaths` deaths at random moments of work; then the run ends, and every turn is accounted for."""
        for _ in range(deaths):
            self._die()
        snapshot = self._ask(self._end)
        self._wait(lambda: self._processes["trainer"].exitcode == 0, END_SECONDS, "the trainer did not end the run")
        return account(self._logs, self._trained, self._deaths, self._ask(_failed), snapshot, cut=self._cut)

    def _die(self) -> None:
        victim = self._random.choice(PRODUCERS) if self.kind.victim == "producer" else self.kind.victim
        signs = {"producer": self._logs[PRODUCERS.index(victim)] if victim in PRODUCERS else None,
                 "trainer": self._trained, "redis": None}[self.kind.victim]  # fmt: skip
        watched = [signs] if signs else [*self._logs, self._trained]
        before = [_size(path) for path in watched]
        self._wait(
            lambda: all(_size(path) > size for path, size in zip(watched, before, strict=True)),
            RETURN_SECONDS, f"{victim} did not work again",
        )  # fmt: skip
        end = time.monotonic() + self._random.uniform(SHORTEST, LONGEST)
        self._wait(lambda: time.monotonic() > end, RETURN_SECONDS, "")
        if victim == "redis":
            self._redis_dies()
        else:
            self._processes[victim].kill()
            self._deaths.append(time.time())
            self._processes[victim].join()
            self._bring_back(victim)

    def _redis_dies(self) -> None:
        if self.kind.power_cut:  # the second that no fsync covers must have been written by this server
            end = time.monotonic() + FSYNC_SECONDS
            self._wait(lambda: time.monotonic() > end, RETURN_SECONDS, "")
        dead = self._server.pid
        kill(dead)
        died = time.monotonic()
        self._deaths.append(time.time())
        if self.kind.trainer_too:
            self._processes["trainer"].kill()
            self._processes["trainer"].join()
        if self.kind.power_cut:
            os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
            self._cut_power(died)
        self._synced.clear()
        self._server.start()
        if self.kind.trainer_too:
            self._bring_back("trainer")

    def _cut_power(self, died: float) -> None:
        """Takes from the append-only file what was written in the last second: no fsync need have reached it.

        On a busy machine the file's size was last seen earlier than that: `cut` is how much was really taken.
        """
        at, sizes = next((seen for seen in reversed(self._synced) if seen[0] <= died - FSYNC_SECONDS), (died, {}))
        self._cut = max(self._cut, died - at)
        for path, size in sizes.items():
            if path.exists() and path.stat().st_size > size:
                os.truncate(path, size)

    def _bring_back(self, name: str) -> None:
        if name == "trainer":
            self._start(name, train, self._tree, self._server.url, self._engine_url)
        else:
            self._start(name, produce, self._tree, name, self._server.url)

    def _start(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        self._processes[name] = CONTEXT.Process(target=target, args=arguments, name=name, daemon=True)
        self._processes[name].start()

    def _wait(self, happened: Callable[[], bool], seconds: float, otherwise: str) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > deadline:
                raise NotBack(f"{self.kind.name}: {otherwise} within {seconds:g} s")
            for name, process in self._processes.items():
                if not process.is_alive() and (name != "trainer" or process.exitcode):
                    raise NotBack(f"{self.kind.name}: {name} ended by itself with exit code {process.exitcode}")
            if self.kind.power_cut:
                files = self._server.folder.rglob("*.incr.aof")
                self._synced.append((time.monotonic(), {path: path.stat().st_size for path in files}))
            time.sleep(WATCH_SECONDS)

    def _ask(self, call: Callable[[TrajectoryBuffer], Any]) -> Any:
        async def connected() -> Any:
            async with await TrajectoryBuffer.of(self._config, self._server.url) as buffer:
                return await call(buffer)

        return asyncio.run(connected())

    async def _open(self, buffer: TrajectoryBuffer) -> None:
        await buffer.open_run(RunRules.of(self._config))
        await buffer.engine_joined(ENGINE, self._engine_url, 1)
        await buffer.engine_serving(ENGINE, WeightVersion(0))

    async def _end(self, buffer: TrajectoryBuffer) -> RunSnapshot:
        """Lets the run end with whole steps of what has been admitted."""
        batch = self._config.rollout.groups_per_step
        admitted = (await buffer.snapshot()).admitted
        await buffer.open_run(replace(RunRules.of(self._config), total_groups=(admitted // batch + 2) * batch))
        return await buffer.snapshot()


async def _failed(buffer: TrajectoryBuffer) -> set[str]:
    """Attempts that failed or were begun again: their turns are given up on purpose."""
    return {one.sample for one in await buffer.outcomes(1_000_000) if one.kind != "finished"}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
