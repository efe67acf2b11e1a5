"""The trainer's side of the buffer: which groups a step trains, and their samples.

Rank 0 alone decides (takes the step); the others are told in short rounds, so that a wait for data, however long, is
never a wait inside one collective. Every rank reads only the groups that it trains.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from itertools import islice
from typing import Any, NamedTuple

import orjson
import torch.distributed as dist

from stream_rl.buffer import RunState, TrainerClaim, TrajectoryBuffer
from stream_rl.consumer.batching import shard
from stream_rl.consumer.collectives import all_sum, broadcast
from stream_rl.consumer.prefetch import Prefetch
from stream_rl.errors import RecordsLost
from stream_rl.sample import Group, LedgerEntry

__all__ = ["Feed", "MiniBatch"]

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.02
ROUND_SECONDS = 1.0
LOADS = 3
"""Losses of a Redis that one step outlasts between its take and its load."""


class MiniBatch(NamedTuple):
    """One rank's groups of one mini-batch, and their places in the ledger entry."""

    places: list[int]
    groups: list[Group]


class Feed:
    """One rank's feed.

    Args:
        runner: the event loop that drives the buffer.
        buffer: this rank's own connection.
        prefetch: reads groups ahead while a step trains.
        update_engines: awaited on rank 0 between rounds, and while there are engines without weights: gives weights to
            those that have not got the newest.
    """

    def __init__(
        self, runner: asyncio.Runner, buffer: TrajectoryBuffer, prefetch: Prefetch,
        update_engines: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._runner = runner
        self._buffer = buffer
        self._prefetch = prefetch
        self._update_engines = update_engines
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._claim = TrainerClaim(0, 0)
        self.waited: dict[str, float] = {}
        """Seconds that the last `take` waited, by reason; known to rank 0."""

    def claim(self, ledger: bytes = b"{}", covered: int = 0) -> TrainerClaim:
        """Makes this trainer the run's only one: older ones are refused from here on. A collective.

        Args:
            ledger, covered: what the newest checkpoint has of the ledger, and the oldest checkpoint's step; rank 0's.
        """
        claim = self._runner.run(self._buffer.claim_trainer(ledger, covered)) if self._rank == 0 else self._claim
        self._claim = TrainerClaim(**orjson.loads(broadcast(orjson.dumps(asdict(claim)))))
        return self._claim

    def take(self, step: int) -> LedgerEntry | None:
        """Waits until the step's groups can be taken; a step that the ledger has gives the recorded ones, once what a
        Redis lost of them was played again. A collective.

        Returns:
            The step's entry, or None when the run is being drained.

        Raises:
            NoTrainableBatch: many groups completed in a row and none could be trained.
            TrainerSuperseded: a newer trainer has claimed the run.
        """
        self.waited = {}
        while True:
            answer = self._runner.run(self._poll(step)) if self._rank == 0 else None
            message = broadcast(orjson.dumps(_plain(answer)))
            if (entry := _answer(orjson.loads(message))) is not RunState.RUNNING:
                return entry if isinstance(entry, LedgerEntry) else None

    def load(self, entry: LedgerEntry, mini_batches: int) -> list[MiniBatch] | None:
        """Reads this rank's groups of each mini-batch, shared out by size. A collective.

        A Redis that lost some of them since the step was taken is waited for.

        Returns:
            The mini-batches, or None when the run is being drained before all records are there again.

        Raises:
            RecordsLost: they are not there, although the buffer says so.
        """
        for _ in range(LOADS):
            loaded = self._load(entry, mini_batches)
            if not all_sum([loaded is None])[0]:
                return loaded
            if self.take(entry.step) is None:
                return None
        raise RecordsLost(f"the groups of step {entry.step} could not be read {LOADS} times")

    def _load(self, entry: LedgerEntry, mini_batches: int) -> list[MiniBatch] | None:
        """This rank's groups of each mini-batch; None when Redis has lost some. A collective."""
        weights = orjson.loads(broadcast(orjson.dumps(self._sizes(entry)))) or [1] * len(entry.groups)
        mine = shard(weights, mini_batches, self._rank, self._ranks)
        wanted = [entry.groups[place] for places in mine for place in places]
        ahead = self._prefetch.collect()
        try:
            groups = iter(self._runner.run(self._buffer.load_groups(wanted, ahead)) if wanted else [])
        except RecordsLost as error:
            logger.warning("step %d is taken again: %s", entry.step, error)
            return None
        return [MiniBatch(places, list(islice(groups, len(places)))) for places in mine]

    def _sizes(self, entry: LedgerEntry) -> list[int] | None:
        if self._rank or self._ranks == 1:
            return None
        try:
            return self._runner.run(self._buffer.group_bytes(entry.groups))
        except RecordsLost:  # the load that follows finds it out on the rank that has the group
            return None

    def read_ahead(self) -> None:
        """Starts to read, beside the training that follows, what the next step would take now."""
        self._prefetch.begin()

    def ledger_tail(self) -> bytes:
        """The newest steps' groups, for a checkpoint; known to rank 0."""
        return self._buffer.ledger_tail()

    def checkpoints_kept(self, oldest_step: int) -> None:
        """Lets the buffer retire what no resume needs: everything up to the oldest checkpoint. Rank 0 says so."""
        if self._rank == 0:
            self._runner.run(self._buffer.checkpoints_kept(self._claim, oldest_step))

    def finish(self) -> None:
        """Tells every producer that the run is over. Rank 0 says so."""
        if self._rank == 0:
            self._runner.run(self._buffer.finish_run())

    async def _poll(self, step: int) -> LedgerEntry | RunState:
        clock = asyncio.get_running_loop().time
        end = clock() + ROUND_SECONDS
        draining = (await self._buffer.snapshot()).state is RunState.DRAINING
        if draining and step > self._claim.ledger_steps:
            return RunState.DRAINING
        await self._update_engines()
        while (asked := clock()) < end:
            answer = await self._buffer.take_step(self._claim, step)
            if isinstance(answer, LedgerEntry):
                return answer
            if draining:  # nobody plays what a replay waits for
                return RunState.DRAINING
            if answer.engines_joining:
                await self._update_engines()
            await asyncio.sleep(POLL_SECONDS)
            self.waited[answer.reason] = self.waited.get(answer.reason, 0.0) + clock() - asked
        return RunState.RUNNING


def _plain(answer: LedgerEntry | RunState | None) -> Any:
    return asdict(answer) if isinstance(answer, LedgerEntry) else answer


def _answer(plain: Any) -> LedgerEntry | RunState:
    if isinstance(plain, str):
        return RunState(plain)
    return LedgerEntry(**{**plain, "groups": tuple(plain["groups"])})
