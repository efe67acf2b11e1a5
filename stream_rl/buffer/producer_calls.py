"""What producers ask of the buffer: work, and the durable record of what they did."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stream_rl.buffer import codec
from stream_rl.buffer.connection import Connection, nonce
from stream_rl.buffer.journals import Stored, read_journals, split
from stream_rl.buffer.records import LeasedSample, Outcome, Record, RunState, SampleStart
from stream_rl.buffer.wire import Pieces
from stream_rl.errors import BufferFull, BufferUnavailable, ImageMissing, JournalMismatch, LeaseLost
from stream_rl.sample import Lease, SampleId, StopReason, Turn

__all__ = ["BESIDE_BYTES", "LEASES_PER_CALL", "ProducerCalls"]

LEASES_PER_CALL = 32
"""Samples that one call hands out: about 1 ms of the server's time."""
BESIDE_BYTES = 64 * 2**10
"""Records from this size on do not go through Lua, which would take twice the server's time."""


class ProducerCalls:
    """The producers' side of TrajectoryBuffer. All of these raise BufferUnavailable and BufferFull.

    `waits_for` is what kept the last lease from all it asked for: a setting's name, `maxmemory` (Redis's own limit), or
    nothing. `concurrency` is how many samples a producer may hold, as the last heartbeat heard; 0: as its settings say.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # A producer started again under its old name must not be taken for the dead one, whose samples have to expire.
        self._token = nonce()
        self._leasing = asyncio.Lock()
        self._lease_nonce = nonce()
        self._beating: set[str] = set()
        self._held: dict[str, set[Lease]] = {}
        self._undelivered: dict[str, list[tuple[LeasedSample, Stored]]] = {}
        self.waits_for = ""
        self.concurrency = 0

    async def heartbeat(self, producer_id: str, lease_seconds: float) -> RunState:
        """Keeps the producer's leases for another `lease_seconds`, counted by Redis's clock, and says what to do."""
        self._beating.add(producer_id)
        milliseconds = round(1000 * lease_seconds)
        state, concurrency = await self._connection.script("heartbeat", self._holder(producer_id), milliseconds)
        self.concurrency = int(concurrency)
        return RunState(state.decode())

    async def lease(self, producer_id: str, count: int) -> list[LeasedSample]:
        """Up to `count` samples: returned ones first, then admitted ones, then new groups while admission is open.

        Empty when there is no work, when the run does not run, and while this producer counts as silent: heartbeat
        first, through the same TrajectoryBuffer. One round trip for each LEASES_PER_CALL samples; those that have a
        journal take more to read it. `waits_for` then says what, if anything, kept work back for want of room.
        """
        assert producer_id in self._beating, f"producer {producer_id} must heartbeat before it leases"
        async with self._leasing:
            # Kept until they can be handed over: a call that is cut off between two round trips loses none.
            ready = self._undelivered.setdefault(producer_id, [])
            while (room := min(count - len(ready), LEASES_PER_CALL)) > 0:
                new = await self._lease_some(producer_id, room)
                ready += new
                if len(new) < room:
                    break
            leased = ready[:count]
            journals = await read_journals(self._connection, [stored for _, stored in leased if stored.records])
            del ready[:count]
        return [
            _with_journal(sample, journals[stored.sample]) if stored.records else sample for sample, stored in leased
        ]

    async def _lease_some(self, producer_id: str, count: int) -> list[tuple[LeasedSample, Stored]]:
        # The nonce stays until an answer came: a call that was cut off hands out the same samples again.
        used = self._lease_nonce
        try:
            rows, holding, full = await self._connection.script(
                "lease", self._holder(producer_id), used, count, waits_for_room=False
            )
        except BufferFull:
            self.waits_for = "maxmemory"
            return []
        self._lease_nonce = nonce()
        self.waits_for = full.decode()
        leased = []
        for sample, number, prompt_index, v0, records, size, returned in rows:
            lease = Lease(SampleId.parse(sample.decode()), int(number), used, producer_id)
            stored = Stored(sample.decode(), int(records), int(size))
            leased.append((LeasedSample(lease, int(prompt_index), int(v0), returned=returned.decode()), stored))
        await self._agree_on_held(producer_id, [sample.lease for sample, _ in leased], holding)
        return leased

    async def commit(
        self, lease: Lease, position: int, records: Sequence[Record], outcome: Outcome | None = None
    ) -> None:
        """Appends records to the sample's journal behind the `position` it has, and ends the sample with `outcome`.

        Sent twice it changes nothing. Costs one round trip of the records' size.

        Raises:
            LeaseLost: the sample has a newer lease, was given back, or its group was given up.
            JournalMismatch: the journal ends elsewhere; `expected` says where to re-send from.
            ImageMissing: a turn names images that are not in the buffer: `put_images`, then the same commit again.
            ValueError: the records are not a start and turns, or hold what JSON cannot.
        """
        for offset, record in enumerate(records):
            if isinstance(record, SampleStart) != (position + offset == 0):
                raise ValueError(f"record {position + offset} of a journal cannot be a {type(record).__name__}")
        turns = [record for record in records if isinstance(record, Turn)]
        images = list(dict.fromkeys(image for record in records for image in record.images))
        encoded = [codec.pieces(record, zstd=self._connection.zstd) for record in records]
        sizes = [sum(map(len, parts)) for parts in encoded]
        listed, beside = self._beside(lease, position, encoded, sizes)
        ended = (outcome.status.value, outcome.stop_reason.value, repr(outcome.reward)) if outcome else ("", "", "")
        reply = await self._as_holder(
            "commit", lease, position, sum(turn.complete for turn in turns), sum(t.length for t in turns),
            sum(len(turn.generated) for turn in turns), sum(sizes), *ended, len(images), *images, *listed,
            beside=beside,
        )  # fmt: skip
        _accepted(reply, lease, position)
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

    def _beside(
        self, lease: Lease, position: int, encoded: Sequence[Pieces], sizes: Sequence[int]
    ) -> tuple[list[bytes], dict[str, Pieces]]:
        """The journal's entries, and the large records that they name by key."""
        listed, beside = [], {}
        for offset, (parts, size) in enumerate(zip(encoded, sizes, strict=True)):
            if size < BESIDE_BYTES:
                listed.append(b"".join(parts))
                continue
            name = f"{lease.nonce}:{position + offset}:{codec.fingerprint(parts):08x}"
            beside[self._connection.key("blob", f"{lease.sample_id}:{name}")] = parts
            listed.append(f"@{name}:{size}".encode())
        return listed, beside

    async def _as_holder(
        self, name: str, lease: Lease, *arguments: str | int | float | bytes, beside: Mapping[str, Pieces] | None = None
    ) -> list[Any]:
        """Runs a script that only the newest lease may run. Raises LeaseLost."""
        reply: list[Any] = await self._connection.script(name, *_fence(lease), *arguments, beside=beside)
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


def _accepted(reply: list[Any], lease: Lease, position: int) -> None:
    """Raises what a commit's reply says, if it was not accepted."""
    sample = lease.sample_id
    match reply[0]:
        case b"mismatch":
            expected = int(reply[1])
            raise JournalMismatch(
                f"sample {sample}: commit at record {position}, but the journal holds {expected}", expected
            )
        case b"no_image":
            names = tuple(name.decode() for name in reply[1:])
            raise ImageMissing(f"sample {sample} names images that are not in the buffer: {', '.join(names)}", names)
        case b"unstored":
            raise BufferUnavailable(f"Redis did not keep a record of sample {sample} that was written just before")
    assert reply[0] == b"ok", reply


def _with_journal(sample: LeasedSample, records: Sequence[Record]) -> LeasedSample:
    start, turns = split(str(sample.lease.sample_id), records)
    return replace(sample, start=start, turns=turns)
