"""What producers ask of the buffer: work, and the durable record of what they did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stream_rl.buffer import codec
from stream_rl.buffer.connection import Connection, nonce
from stream_rl.buffer.journals import Stored, read_journals, split
from stream_rl.buffer.records import LeasedSample, Outcome, Record, RunState, SampleStart
from stream_rl.errors import JournalMismatch, LeaseLost
from stream_rl.sample import Lease, SampleId, StopReason, Turn


class ProducerCalls:
    """The producers' side of TrajectoryBuffer. All of these raise BufferUnavailable and BufferFull."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # A producer started again under its old name must not be taken for the dead one, whose samples have to expire.
        self._token = nonce()
        self._leasing = asyncio.Lock()
        self._lease_nonce = nonce()
        self._beating: set[str] = set()
        self._held: dict[str, set[Lease]] = {}

    async def heartbeat(self, producer_id: str, lease_seconds: float) -> RunState:
        """Keeps the producer's leases for another `lease_seconds`, counted by Redis's clock, and says what to do."""
        self._beating.add(producer_id)
        reply = await self._connection.script("heartbeat", self._holder(producer_id), round(1000 * lease_seconds))
        return RunState(reply.decode())

    async def lease(self, producer_id: str, count: int) -> list[LeasedSample]:
        """Up to `count` samples: returned ones first, then admitted ones, then new groups while admission is open.

        Empty when there is no work, when the run does not run, and while this producer counts as silent: heartbeat
        first, through the same TrajectoryBuffer. One round trip; samples that have a journal take another to read it.
        """
        assert producer_id in self._beating, f"producer {producer_id} must heartbeat before it leases"
        async with self._leasing:
            # The nonce stays until an answer came: a call that was cut off hands out the same samples again.
            used = self._lease_nonce
            rows, holding = await self._connection.script("lease", self._holder(producer_id), used, count)
            self._lease_nonce = nonce()
            leases = [Lease(SampleId.parse(row[0].decode()), int(row[1]), used, producer_id) for row in rows]
            await self._agree_on_held(producer_id, leases, holding)
        leased = []
        stored = []
        for lease, (sample, _, prompt_index, v0, records, size) in zip(leases, rows, strict=True):
            leased.append(LeasedSample(lease, int(prompt_index), int(v0)))
            if int(records):
                stored.append(Stored(sample.decode(), int(records), int(size)))
        journals = await read_journals(self._connection, stored)
        return [_with_journal(sample, journals.get(str(sample.lease.sample_id), [])) for sample in leased]

    async def commit(
        self, lease: Lease, position: int, records: Sequence[Record], outcome: Outcome | None = None
    ) -> None:
        """Appends records to the sample's journal behind the `position` it has, and ends the sample with `outcome`.

        Sent twice it changes nothing. Costs one round trip of the records' size.

        Raises:
            LeaseLost: the sample has a newer lease, was given back, or its group was given up.
            JournalMismatch: the journal ends elsewhere; `expected` says where to re-send from.
            ValueError: the records are not a start and turns, or hold what JSON cannot.
        """
        for offset, record in enumerate(records):
            if isinstance(record, SampleStart) != (position + offset == 0):
                raise ValueError(f"record {position + offset} of a journal cannot be a {type(record).__name__}")
        turns = [record for record in records if isinstance(record, Turn)]
        encoded = [codec.encode(record) for record in records]
        ended = (outcome.status.value, outcome.stop_reason.value, repr(outcome.reward)) if outcome else ("", "", "")
        reply = await self._as_holder(
            "commit", lease, position, sum(turn.complete for turn in turns), sum(t.length for t in turns),
            sum(len(turn.generated) for turn in turns), sum(map(len, encoded)), *ended, *encoded,
        )  # fmt: skip
        if reply[0] == b"mismatch":
            expected = int(reply[1])
            raise JournalMismatch(
                f"sample {lease.sample_id}: commit at record {position}, but the journal holds {expected}", expected
            )
        if outcome is not None:
            self._let_go(lease)

    async def restart(self, lease: Lease) -> Lease:
        """Drops every turn and keeps the start record: the episode begins again, under the lease returned.

        Raises LeaseLost.
        """
        renewed = replace(lease, nonce=nonce())
        await self._as_holder("restart", lease, renewed.nonce)
        self._let_go(lease)
        self._held.setdefault(lease.producer_id, set()).add(renewed)
        return renewed

    async def fail(self, lease: Lease, stop_reason: StopReason, detail: str) -> None:
        """Ends the sample as failed; a new attempt takes its place, or the group is dead-lettered. Raises LeaseLost."""
        await self._as_holder("fail", lease, stop_reason.value, detail)
        self._let_go(lease)

    async def release(self, leases: Sequence[Lease]) -> None:
        """Gives samples back with all they have committed; leases already lost are left alone."""
        if leases:
            await self._connection.script("release", *(part for lease in leases for part in _fence(lease)))
        for lease in leases:
            self._let_go(lease)

    async def _as_holder(self, name: str, lease: Lease, *arguments: str | int | float | bytes) -> list[Any]:
        """Runs a script that only the newest lease may run. Raises LeaseLost."""
        reply: list[Any] = await self._connection.script(name, *_fence(lease), *arguments)
        if reply[0] == b"lease_lost":
            self._let_go(lease)
            raise LeaseLost(
                f"sample {lease.sample_id} is no longer leased to {lease.producer_id} (lease {lease.number})"
            )
        return reply

    async def _agree_on_held(self, producer_id: str, new: Sequence[Lease], holding: int) -> None:
        """Gives back what Redis alone believes to be held: samples that had ended, in writes that a crash took."""
        held = self._held.setdefault(producer_id, set())
        held.update(new)
        if holding > len(held):
            known = (str(lease.sample_id) for lease in held)
            await self._connection.script("hold_only", self._holder(producer_id), *known)

    def _let_go(self, lease: Lease) -> None:
        self._held.get(lease.producer_id, set()).discard(lease)

    def _holder(self, producer_id: str) -> str:
        return f"{producer_id}:{self._token}"


def _fence(lease: Lease) -> tuple[str, int, str]:
    return str(lease.sample_id), lease.number, lease.nonce


def _with_journal(sample: LeasedSample, records: Sequence[Record]) -> LeasedSample:
    start, turns = split(str(sample.lease.sample_id), records)
    return replace(sample, start=start, turns=turns)
