"""One policy on the real pipeline: Valkey, producer, turn loop, HTTP, weight updates; only the model's work is slept.

    producer ─► engines (another process) ─► buffer ─► trainer: take, sleep for its tokens, update the engines

The run folder gets the same turn log and steps.jsonl as a real run's, for the fit of the simulator.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from schedules import world
from schedules.policies import Policy
from stream_rl.buffer import RunRules, TrainerClaim, TrajectoryBuffer, Waiting
from stream_rl.config import Config
from stream_rl.engine.fleet import Fleet
from stream_rl.engine.publish import WeightPublisher
from stream_rl.metrics.turn_log import JsonLines
from stream_rl.models.tiny_text import CONTEXT_LENGTH, WORDS
from stream_rl.producer.loading import load_rollout
from stream_rl.producer.worker import Producer
from stream_rl.sample import Group, LedgerEntry, WeightVersion
from stream_rl.staleness import written_by
from stream_rl.tuning import GivenWorkload, Machine, Plan

DEADLINE = 600.0
POLL = 0.01


@dataclass
class Played:
    """What a policy did in the steps that count: one entry a sample, and one a group in `group_lags`.

    `written` are tokens that the engines wrote meanwhile, `waited` seconds in which the trainer had no groups,
    `dropped` tokens thrown away, `started` the lengths of the episodes begun.
    """

    seconds: float = 0.0
    steps: int = 0
    tokens: list[int] = field(default_factory=list)
    masked: list[int] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    trained_lags: list[int] = field(default_factory=list)
    group_lags: list[int] = field(default_factory=list)
    written: float = 0.0
    waited: float = 0.0
    dropped: int = 0
    started: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens that carried loss, a second."""
        return (sum(self.tokens) - sum(self.masked)) / self.seconds


def settings(folder: Path, model: Path, given: GivenWorkload, *, plan: Plan, machine: Machine, seed: int) -> Config:
    """The run of a plan."""
    return Config.parse(
        {
            "run": str(folder),
            "seed": seed,
            "model": {"path": str(model)},
            "environment": {
                "path": "schedules.world", "step_timeout": 120.0,
                "args": {"world": given.model_dump(), "group_size": plan.group_size, "seed": seed},
            },
            "rollout": {
                "groups_per_step": plan.groups_per_step, "group_size": plan.group_size, "max_turns": given.turns_most,
                "max_turn_len": given.tokens_most + 1, "max_response_len": CONTEXT_LENGTH - 8,
                "max_context_len": CONTEXT_LENGTH - 4,
            },
            "scheduling": {
                "run_ahead": plan.run_ahead, "max_staleness": plan.max_staleness, "max_lag": plan.max_lag,
            },
            "engine": {
                "pause_mode": machine.pause_mode, "count": machine.engines, "max_running_requests": machine.slots,
            },
            "producer": {"concurrency": plan.concurrency},
            "trainer": {"steps": 10_000},
        }
    )  # fmt: skip


class Trainer:
    """Takes steps, sleeps for as long as they would take, updates the engines."""

    def __init__(
        self, buffer: TrajectoryBuffer, policy: Policy, machine: Machine, urls: list[str], log: JsonLines
    ) -> None:
        self._buffer, self._policy, self._machine, self._log = buffer, policy, machine, log
        self._places = [(f"engine-{number}", url) for number, url in enumerate(urls)]
        self._publisher = WeightPublisher(pause_mode=machine.pause_mode)
        self._claim = TrainerClaim(0, 0)
        self.played = Played()
        self._counts = False

    async def run(self, steps: int, skipped: int) -> Played:
        """Trains to step `skipped` uncounted, then `steps` more."""
        self._claim = await self._buffer.claim_trainer()
        began = time.monotonic()
        for step in range(1, skipped + steps + 1):
            if step == skipped + 1:
                began, world_before = time.monotonic(), len(world.STARTED)
                written = await self._written()
                self._counts = True
            await self._step(step)
        self.played.seconds, self.played.steps = time.monotonic() - began, steps
        self.played.written = await self._written() - written
        self.played.started = world.STARTED[world_before:]
        await self._publisher.close()
        return self.played

    async def _step(self, step: int) -> None:
        parts: dict[str, float] = {}
        entry = await _timed(parts, "wait", self._take(step))
        if self._policy.takes_first and step > 1:
            await _timed(parts, "publish", self._publish(step - 1))
        groups = await _timed(parts, "load", self._buffer.load_groups(entry.groups))
        tokens = self._count(entry, groups)
        seconds = self._machine.step_seconds + tokens * self._machine.train_seconds - parts["load"]
        await _timed(parts, "train", asyncio.sleep(max(seconds, 0.0)))
        if not self._policy.takes_first:
            await _timed(parts, "publish", self._publish(step))
        self.played.waited += parts["wait"] * self._counts
        self._log.append({
            "step": step, "time": time.time(), "generated_tokens": tokens, "trained_tokens": self._trained,
            "checkpoint_seconds": 0.0, **{f"{name}_seconds": value for name, value in parts.items()},
        })  # fmt: skip
        await self._buffer.checkpoints_kept(self._claim, step)

    async def _take(self, step: int) -> LedgerEntry:
        async with asyncio.timeout(DEADLINE):
            while True:
                if self._policy.drops_beyond is not None:
                    self.played.dropped += await drop(self._buffer, step - 1 - self._policy.drops_beyond) * self._counts
                answer = await self._buffer.take_step(self._claim, step)
                if not isinstance(answer, Waiting):
                    return answer
                await asyncio.sleep(POLL)

    async def _publish(self, step: int) -> None:
        version = WeightVersion(step)
        for update in await self._publisher.publish(self._places, version, Path("none")):
            assert update.ok, update.error
        for engine, _ in self._places:
            await self._buffer.engine_serving(engine, version)

    async def _written(self) -> float:
        async with httpx.AsyncClient() as client:
            return sum([(await client.get(f"{url}/server_info")).json()["generated"] for _, url in self._places])

    def _count(self, entry: LedgerEntry, groups: list[Group]) -> int:
        version, total, trained = entry.step - 1, 0, 0
        for group in groups:
            if self._counts:
                self.played.group_lags.append(version - group.v0)
            for sample in group.samples:
                lags = version - sample.version_steps[sample.loss_mask.astype(bool)]
                fresh = lags[lags <= entry.max_staleness]
                total, trained = total + len(lags), trained + len(fresh)
                if self._counts:
                    self.played.tokens.append(len(lags))
                    self.played.masked.append(len(lags) - len(fresh))
                    self.played.lags.append(version - written_by(sample.version_steps, version)[0])
                    self.played.trained_lags.append(int(fresh.max(initial=0)))
        self._trained = trained
        return total


async def drop(buffer: TrajectoryBuffer, oldest: int) -> int:
    """Throws away the complete groups with a v0 below `oldest`, and lets others start for them; their tokens."""
    connection = buffer._connection
    ready, live, run = (connection.key(name) for name in ("ready", "live", "run"))
    (stale,) = await connection.pipeline(lambda pipe: pipe.zrangebyscore(ready, "-inf", oldest - 1))
    tokens = 0
    for group in stale:
        number = int(group)
        hashes = await connection.hashes("group", [str(number)])
        attempts = [name.split(b":")[1] for name in hashes[0] if name.startswith(b"attempt:")]
        samples = await connection.hashes("sample", [f"{number}-{int(index)}" for index in attempts])
        tokens += sum(int(sample[b"totals"].split()[-1]) for sample in samples)
        await connection.pipeline(
            lambda pipe, group=group: (  # type: ignore[misc]
                pipe.zrem(ready, group), pipe.zrem(live, group), pipe.hincrby(run, "filtered", 1),
            )
        )  # fmt: skip
    return tokens


async def _timed(parts: dict[str, float], name: str, work: Awaitable[Any]) -> Any:
    began = time.monotonic()
    try:
        return await work
    finally:
        parts[name] = time.monotonic() - began


class Pipelines:
    """Plays policies, one after the other, each in a run of its own."""

    def __init__(
        self, folder: Path, model: Path, buffer_url: str, order: Callable[[dict[str, Any]], list[str]]
    ) -> None:
        self._folder, self._model, self._buffer_url, self._order = folder, model, buffer_url, order
        self._numbers = itertools.count()

    async def play(
        self, policy: Policy, plan: Plan, given: GivenWorkload, machine: Machine, *, seed: int, steps: int, skipped: int
    ) -> tuple[Played, Path]:
        """Plays a policy; what it did, and its run folder."""
        world.forget()
        urls = await asyncio.to_thread(self._order, machine.model_dump())
        folder = self._folder / f"run-{next(self._numbers)}"
        config = settings(folder, self._model, given, plan=plan, machine=machine, seed=seed)
        folder.mkdir()
        (folder / "config.yaml").write_text(config.dump())
        rollout = load_rollout(config)
        fleet = Fleet(vocab_size=len(WORDS), timeout=DEADLINE)
        stop = asyncio.Event()
        async with await TrajectoryBuffer.of(config, self._buffer_url) as buffer:
            await buffer.open_run(RunRules.of(config))
            for number, url in enumerate(urls):
                await buffer.engine_joined(f"engine-{number}", url, 1)
                await buffer.engine_serving(f"engine-{number}", WeightVersion(0))
            with JsonLines(folder / "turns" / "p.jsonl") as turns, JsonLines(folder / "steps.jsonl") as log:
                playing = asyncio.create_task(Producer(rollout, buffer, fleet, "p", turns).run(stop))
                training = asyncio.create_task(Trainer(buffer, policy, machine, urls, log).run(steps, skipped))
                try:
                    await asyncio.wait({playing, training}, return_when=asyncio.FIRST_COMPLETED)
                    if playing.done():  # it ends by a failure alone
                        training.cancel()
                        await playing
                    played = await training
                finally:
                    stop.set()
                    playing.cancel()
                    await asyncio.gather(playing, training, return_exceptions=True)
                    await fleet.close()
            with JsonLines(folder / "samples.jsonl") as samples:
                samples.extend(await buffer.outcomes(1_000_000))
            async for _ in buffer.purge():
                pass
        return played, folder


def summary(played: Played) -> dict[str, float]:
    """The figures of one policy, but for those that compare it with others."""
    lags = np.array(played.lags)
    return {
        "tokens_per_second": played.rate, "lag_p50": float(np.quantile(lags, 0.5)),
        "lag_p99": float(np.quantile(lags, 0.99)), "lag_max": int(lags.max()),
        "group_lag_max": max(played.group_lags), "trained_lag_max": max(played.trained_lags),
        "dropped": played.dropped / (sum(played.tokens) + played.dropped),
        "masked": sum(played.masked) / sum(played.tokens),
        "length_bias": float(np.mean(played.tokens) / np.mean(played.started)),
        "trainer_idle": played.waited / played.seconds,
        "step_seconds": played.seconds / played.steps,
    }  # fmt: skip
