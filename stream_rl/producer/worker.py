"""A producer: one asyncio process that plays hundreds of leased samples at once.

    buffer ──lease──► up to `concurrency` episodes ──generate──► fleet of engines (as the buffer lists them)
       ▲                      │
       └──── turn commits ────┘        heartbeat: silent for `lease_seconds`, and others resume what was committed

Invariants: a sample is played only under a lease; a lease that is lost ends its episode and nothing else; whatever ends
the producer, committed turns stay and the leases go back, at the latest by expiry.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import time
from dataclasses import dataclass

from stream_rl.buffer import LeasedSample, ProcessRecord, RunState, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.engine.fleet import Fleet
from stream_rl.errors import EngineError, JournalMismatch, LeaseLost
from stream_rl.metrics import catalog
from stream_rl.metrics.exporter import serve_metrics
from stream_rl.metrics.playing import Playing
from stream_rl.metrics.tracing import Traces, start_otlp
from stream_rl.metrics.turn_log import JsonLines
from stream_rl.producer.cache_scope import cache_scope
from stream_rl.producer.journal import BufferJournal
from stream_rl.producer.loading import Rollout, load_rollout, load_vocab_size
from stream_rl.producer.room import RoomWatch
from stream_rl.producer.samples import rebuild
from stream_rl.producer.turn_loop import Episode

__all__ = ["forget_garbage", "run_producer"]

logger = logging.getLogger(__name__)

EMPTY_PAUSE = 0.02
"""Seconds before the buffer is asked again after it had less work than there was room for."""
WAKE_SECONDS = 0.1
HEARTBEAT_SECONDS = 1.0
"""Longest time between two heartbeats: by them a producer hears of a live change of `producer.concurrency`."""
REFRESH_SECONDS = 1.0
REFRESH_SECONDS_WITHOUT_ENGINE = 0.1
COLLECT_AFTER = (20_000, 20, 100)
"""When the garbage collector looks, as `gc.set_threshold` has it."""


async def run_producer(config: Config, *, producer_id: str, buffer_url: str, stop: asyncio.Event) -> None:
    """Plays samples until the run is finished or drained, or `stop` is set; then gives its leases back.

    Raises:
        UserError: environment, dataset, tokenizer or reward function cannot be used.
        BufferUnavailable: Redis did not come back within `buffer.timeout`.
    """
    rollout = load_rollout(config)
    forget_garbage()
    fleet = Fleet(
        vocab_size=load_vocab_size(config.model),
        timeout=config.engine.request_timeout,
        router=config.engine.router_url,
    )
    log = _turn_log(config, producer_id)
    traces = start_otlp(config.metrics.otlp_endpoint, config.metrics.trace_share)
    buffer = await TrajectoryBuffer.of(config, buffer_url)
    try:
        metrics_url = serve_metrics(config.metrics.host)
        await buffer.register_process(
            ProcessRecord(producer_id, "producer", socket.gethostname(), os.getpid(), metrics_url)
        )
        await Producer(rollout, buffer, fleet, producer_id, log, traces=traces).run(stop)
    finally:
        await fleet.close()
        await buffer.close()
        rollout.close()
        if log is not None:
            log.close()
        await asyncio.to_thread(traces.close)


def forget_garbage() -> None:
    """Takes all that is loaded out of the garbage collector's sight, as it stays, and has it look more rarely.

    The collector would go through what is loaded again and again, and then, with nothing old left to weigh new objects
    against, through all live samples: a third of what a request costs, and as much once more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def _turn_log(config: Config, producer_id: str) -> JsonLines | None:
    settings = config.metrics
    if not settings.turn_log:
        return None
    path = config.folder / "turns" / f"{producer_id}.jsonl"
    return JsonLines(path, most_bytes=settings.turn_log_mib * 2**20, kept=settings.turn_logs_kept)


@dataclass(frozen=True, slots=True)
class _Live:
    """One sample being played."""

    episode: Episode
    journal: BufferJournal
    task: asyncio.Task[None]
    since: float


class Producer:
    """Keeps `producer.concurrency` samples in play."""

    def __init__(
        self,
        rollout: Rollout,
        buffer: TrajectoryBuffer,
        fleet: Fleet,
        producer_id: str,
        log: JsonLines | None = None,
        *,
        traces: Traces | None = None,
    ) -> None:
        self._rollout = rollout
        self._config = rollout.config
        self._buffer = buffer
        self._fleet = fleet
        self._producer_id = producer_id
        self._log = log
        self._traces = traces or Traces(None)
        self._live: dict[asyncio.Task[None], _Live] = {}
        self._changed = asyncio.Event()
        self._state = RunState.RUNNING
        self._failures: list[BaseException] = []
        self._room = RoomWatch(rollout.config.buffer.room_timeout)

    async def run(self, stop: asyncio.Event) -> None:
        """Plays until the run's state or `stop` says otherwise; raises the first failure that is no sample's own."""
        self._state = await self._heartbeat()
        background = [asyncio.create_task(self._keep_alive()), asyncio.create_task(self._follow_engines())]
        for task in background:
            task.add_done_callback(self._note_failure)
        try:
            while not stop.is_set() and self._state is RunState.RUNNING and not self._failures:
                idle = await self._fill()
                await self._wait(EMPTY_PAUSE if idle else WAKE_SECONDS, at_least=EMPTY_PAUSE if idle else 0.0)
            await self._drain()
        finally:
            for task in [*background, *self._live]:
                task.cancel()
            await asyncio.wait([*background, *self._live], timeout=self._config.producer.drain_seconds)
        if self._failures:
            raise self._failures[0]

    async def _fill(self) -> bool:
        """Leases what there is room for; whether the buffer had less than that."""
        room = (self._buffer.concurrency or self._config.producer.concurrency) - len(self._live)
        if room <= 0:
            return False
        leased = await self._buffer.lease(self._producer_id, room)
        self._room.looked(self._buffer.waits_for, progress=bool(leased or self._live))
        for sample in leased:
            self._start(sample)
        return len(leased) < room

    def _start(self, leased: LeasedSample) -> None:
        journal = BufferJournal(self._buffer, leased, self._rollout.environment.name, self._log)
        sample, row = rebuild(leased, self._rollout)
        scope = cache_scope(self._config, str(sample.group_index), leased.v0)
        begun, returned = leased.start is not None, leased.returned
        episode = Episode(self._rollout, self._fleet, journal, sample, row, begun=begun, returned=returned, scope=scope)
        task = asyncio.create_task(self._named(episode, journal))
        self._live[task] = _Live(episode, journal, task, time.monotonic())
        task.add_done_callback(self._ended)
        catalog.LIVE_SAMPLES.set(len(self._live))

    async def _named(self, episode: Episode, journal: BufferJournal) -> None:
        """Plays an episode under the sample's name in logs, and in its trace, if it has one."""
        lease, sample, began = journal.lease, episode.sample, time.time() - episode.sample.active_seconds
        group, name = lease.sample_id.group, str(lease.sample_id)
        with self._traces.trajectory(
            Playing(self._config.name, group, name, lease.number, lambda: sample.next_turn)
        ) as playing:
            await self._play(episode, journal)
            if sample.stop_reason is not None:
                reason, reward = sample.stop_reason.value, sample.reward or 0.0
                self._traces.end(playing, began, stop_reason=reason, reward=reward, turns=sample.next_turn)

    async def _play(self, episode: Episode, journal: BufferJournal) -> None:
        try:
            await episode.run()
        except LeaseLost as error:
            logger.info("%s", error)
        except JournalMismatch as error:
            logger.warning("sample given back: %s", error)
            await self._buffer.release([journal.lease])
        else:
            if episode.sample.stop_reason is None:
                await self._buffer.release([journal.lease])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._note_failure(task)
        del self._live[task]
        catalog.LIVE_SAMPLES.set(len(self._live))

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)
        self._changed.set()

    async def _wait(self, seconds: float, at_least: float) -> None:
        await asyncio.sleep(at_least)
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _drain(self) -> None:
        """Interrupts every episode, lets commits finish, and gives the leases back, within `drain_seconds`."""
        seconds = self._config.producer.drain_seconds
        live = list(self._live.values())
        for one in live:
            one.episode.interrupt()
        aborts = [asyncio.create_task(self._abort(one.episode)) for one in live]
        if live:
            await asyncio.wait([*aborts, *(one.task for one in live)], timeout=seconds / 2)
        late = [one for one in live if not one.task.done()]
        for one in late:
            if not one.journal.committing:
                one.task.cancel()
        if late:
            await asyncio.wait([one.task for one in late], timeout=seconds / 2)
            await self._buffer.release([one.journal.lease for one in late])

    async def _abort(self, episode: Episode) -> None:
        try:
            await self._fleet.abort(episode.request_id)
        except EngineError as error:
            logger.info("abort of %s: %s", episode.request_id, error)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(min(self._config.producer.lease_seconds / 3, HEARTBEAT_SECONDS))
            self._state = await self._heartbeat()

    async def _heartbeat(self) -> RunState:
        return await self._buffer.heartbeat(self._producer_id, self._config.producer.lease_seconds)

    async def _follow_engines(self) -> None:
        while True:
            serving = [engine for engine in await self._buffer.engines() if engine.state == "serving"]
            places = [(engine.engine_id, engine.url) for engine in serving]
            await self._fleet.refresh(places, {engine.engine_id: engine.version for engine in serving})
            now = time.monotonic()
            catalog.OLDEST_LEASE_SECONDS.set(now - min((live.since for live in self._live.values()), default=now))
            await asyncio.sleep(REFRESH_SECONDS if self._fleet.engines else REFRESH_SECONDS_WITHOUT_ENGINE)
