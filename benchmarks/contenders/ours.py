"""Our buffer, whole: leases, fenced commits, complete groups, the ledger, checked samples, retirement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from contenders.over_valkey import OverValkey
from contenders.payload import Pool
from stream_rl.buffer import LeasedSample, Outcome, RunRules, TrajectoryBuffer, Waiting
from stream_rl.buffer.records import Record
from stream_rl.errors import LedgerMismatch
from stream_rl.sample import LedgerEntry, Status, StopReason, WeightVersion

RUN = "benchmark"
RULES = RunRules(groups_per_step=4, group_size=8, run_ahead=3)
STEP = RULES.groups_per_step * RULES.group_size
IN_FLIGHT, PLAYERS = 32, 2
"""Samples that the producer holds, and how many loops play them: one leases while the other's commits are under way."""
POLL_SECONDS = 0.004
"""As TransferQueue's consumer waits."""
OUTCOME = Outcome(Status.COMPLETED, StopReason.ENV_DONE, 1.0)


class Producer:
    """Leases and commits, as a producer's episodes do when they end: up to IN_FLIGHT commits at once."""

    def __init__(self, url: str, seed: int) -> None:
        self._runner = asyncio.Runner()
        self._pool = Pool(seed)
        self._buffer = self._runner.run(_connect(url))

    def warm(self, tokens: int) -> None:
        """Makes the samples."""
        self._pool.of("journal", tokens)

    def put(self, tokens: int, first: int, count: int) -> None:
        """Finished samples, each in one commit."""
        self._runner.run(self._put(self._pool.of("journal", tokens), count))

    async def _put(self, samples: list[list[Record]], count: int) -> None:
        await self._buffer.heartbeat("p", 600.0)
        await asyncio.gather(*(self._play(samples, count // PLAYERS) for _ in range(PLAYERS)))

    async def _play(self, samples: list[list[Record]], count: int) -> None:
        while count:
            leased = await self._buffer.lease("p", min(count, IN_FLIGHT // PLAYERS))
            if not leased:
                await asyncio.sleep(POLL_SECONDS)
            await asyncio.gather(*(self._commit(sample, samples) for sample in leased))
            count -= len(leased)

    async def _commit(self, leased: LeasedSample, samples: list[list[Record]]) -> None:
        sample = samples[leased.lease.sample_id.index % len(samples)]
        await self._buffer.commit(leased.lease, 0, sample, OUTCOME)


class Consumer:
    """Takes steps as a trainer of one rank does; a step that is settled is covered by a checkpoint."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._buffer = self._runner.run(_connect(url))
        self._claim = self._runner.run(self._buffer.claim_trainer())
        self._step = self._claim.ledger_steps

    def take(self, tokens: int, count: int, settle: bool = True) -> list[int]:
        """`count` samples, by whole steps."""
        return self._runner.run(self._take(count, settle))

    def recover(self, tokens: int, count: int, patience: float) -> list[int]:
        """The steps that no checkpoint covers, again, then whatever else is complete."""
        return self._runner.run(self._recover(count, patience))

    async def _take(self, count: int, settle: bool) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            taken += await self._load(self._step + 1, await self._entry(self._step + 1))
            self._step += 1
            await self._buffer.engine_serving("engine", WeightVersion(self._step))
            if settle:
                await self._buffer.checkpoints_kept(self._claim, self._step)
        return taken

    async def _recover(self, count: int, patience: float) -> list[int]:
        taken: list[int] = []
        step = 1
        while len(taken) < count:
            try:
                async with asyncio.timeout(patience):
                    taken += await self._load(step, await self._entry(step))
            except LedgerMismatch:  # retired
                pass
            except TimeoutError:
                break
            step += 1
        self._step = max(self._step, step - 1)
        await self._buffer.checkpoints_kept(self._claim, self._step)
        return taken

    async def _entry(self, step: int) -> LedgerEntry:
        while isinstance(answer := await self._buffer.take_step(self._claim, step), Waiting):
            await asyncio.sleep(POLL_SECONDS)
        return answer

    async def _load(self, step: int, entry: LedgerEntry) -> list[int]:
        groups = await self._buffer.load_groups(entry.groups)
        return [group.index * RULES.group_size + sample.index for group in groups for sample in group.samples]


class Ours(OverValkey):
    """stream_rl's buffer over its embedded Valkey."""

    name = "stream_rl"

    def producer(self) -> Callable[[], Producer]:
        return partial(Producer, self.server.url, self.seed)

    def consumer(self) -> Callable[[], Consumer]:
        return partial(Consumer, self.server.url)

    def __enter__(self) -> Ours:
        self.server.start()
        asyncio.run(_open(self.server.url))
        return self


async def _connect(url: str) -> TrajectoryBuffer:
    return await TrajectoryBuffer.connect(url, RUN)


async def _open(url: str) -> None:
    async with await _connect(url) as buffer:
        await buffer.open_run(RULES)
        await buffer.engine_joined("engine", "http://127.0.0.1:1", 1)
        await buffer.engine_serving("engine", WeightVersion(0))
