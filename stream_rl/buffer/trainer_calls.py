"""What the trainer asks of the buffer: batches that are recorded in the call that takes them, and their samples.

After a restart or failover, which may have cost Redis the ledger's tail, the scripts refuse the trainer's next call and
admit nothing until the trainer has asserted its ledger again. It does so by itself, from the entries that it was given,
and says again which versions it gave the engines. What was lost of those groups' records is played again, unless a
checkpoint covers them; a replay waits for it. A trainer that died with Redis has its newest entries in its checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from stream_rl.buffer.connection import Connection, nonce
from stream_rl.buffer.engine_calls import EngineCalls
from stream_rl.buffer.journals import Stored, Totals, read_journals, sample_of, siblings
from stream_rl.buffer.records import Record, TrainerClaim, Waiting
from stream_rl.errors import (
    BufferUnavailable,
    CorruptRecord,
    LedgerMismatch,
    NoTrainableBatch,
    RecordsLost,
    TrainerSuperseded,
)
from stream_rl.sample import Group, LedgerEntry, Sample, SampleId, Status, StopReason

__all__ = ["FinishedSample", "TrainerCalls"]

logger = logging.getLogger(__name__)

ASSERTIONS = 3
"""Restarts of Redis that one call outlasts."""
_END = ("state", "nonce", "totals", "status", "stop_reason", "reward")

KNOWN_STEPS = 1000
"""Entries that a trainer still knows behind the oldest checkpoint kept: Redis may lose those of several checkpoints."""
STEPS_IN_CHECKPOINT = 100
"""Newest entries that stand in a checkpoint: more steps than a second has."""


class FinishedSample(NamedTuple):
    """A sample as it was read, and by which lease and with which totals: one lease names one history."""

    written: tuple[bytes, bytes]
    sample: Sample


class TrainerCalls(EngineCalls):
    """The trainer's side of TrajectoryBuffer. All of these raise BufferUnavailable."""

    def __init__(self, connection: Connection) -> None:
        EngineCalls.__init__(self, connection)
        self._entries: dict[int, bytes] = {}
        self._covered = 0

    async def claim_trainer(self, ledger: bytes = b"{}", covered: int = 0) -> TrainerClaim:
        """Makes this process the run's trainer: every older claim is refused from now on.

        Args:
            ledger: the `ledger_tail` that the newest checkpoint has. Steps of it that Redis has lost are written again.
            covered: step of the oldest checkpoint.
        """
        token, key = nonce(), self._connection.key("ledger")
        incarnation, steps = await self._connection.script("claim_trainer", token)
        claim = TrainerClaim(int(incarnation), int(steps), token)
        (entries,) = await self._connection.pipeline(lambda pipe: pipe.hgetall(key))
        self._entries = {int(step): entry for step, entry in entries.items()}
        self._covered = covered
        remembered = {int(step): entry.encode() for step, entry in orjson.loads(ledger).items()}
        lost = {step: entry for step, entry in remembered.items() if step > claim.ledger_steps}
        # A ledger without a step is a new run's, whatever lies in its folder; one with a gap helps nobody.
        if claim.ledger_steps and sorted(lost) == list(range(claim.ledger_steps + 1, max(remembered, default=0) + 1)):
            self._entries |= lost
            if lost:
                await self._reassert(claim, claim.ledger_steps)
        return replace(claim, ledger_steps=max(claim.ledger_steps, *self._entries, 0))

    def ledger_tail(self) -> bytes:
        """The newest entries that this trainer knows, as a JSON object by step, for a checkpoint of the last one."""
        newest = sorted(self._entries)[-STEPS_IN_CHECKPOINT:]
        return orjson.dumps({str(step): self._entries[step].decode() for step in newest})

    async def take_step(self, claim: TrainerClaim, step: int) -> LedgerEntry | Waiting:
        """The groups that step `step` (from 1) trains on.

        A step that the ledger holds gives its recorded entry, once all its groups' records are there; the step after it
        takes groups by scheduling.py's pull rule, and the same call writes the ledger.

        Raises:
            TrainerSuperseded: another trainer has claimed the run.
            NoTrainableBatch: max_untrainable_completions groups in a row were filtered or dead-lettered.
            LedgerMismatch: the step lies beyond the ledger's end, or was retired, or Redis lost entries that this
                trainer does not know either.
        """
        reply = await self._as_trainer(claim, "take_step", step)
        kind, *rest = reply
        match kind:
            case b"entry":
                self._entries[step] = rest[0]
                return _entry(step, rest[0])
            case b"waiting":
                reason, live, complete, joining = rest
                return Waiting(reason.decode(), int(live), int(complete), int(joining))
            case b"untrainable":
                raise NoTrainableBatch(
                    f"{int(rest[0])} groups in a row were filtered or dead-lettered: see setting "
                    "scheduling.max_untrainable_completions, and whether rewards differ within groups"
                )
            case b"behind":
                raise LedgerMismatch(f"step {step} asked for, but the ledger ends at step {int(rest[0])}")
            case _:
                assert kind == b"retired", reply
                raise LedgerMismatch(f"step {step} was retired: no checkpoint that is kept needs it")

    async def load_groups(
        self, groups: Sequence[int], ahead: Mapping[str, FinishedSample] | None = None
    ) -> list[Group]:
        """The groups' samples, whole and checked (I1), in the order asked for; read in chunks of at most 8 MB.

        Args:
            groups: their numbers.
            ahead: what was read ahead of them; only what has not changed since is taken from it.

        Raises:
            RecordsLost: a group is not there, or not whole: take the step again, which waits until it is.
            CorruptRecord: a record does not decode.
        """
        hashes = await self._hashes("group", [str(group) for group in groups])
        ids = [siblings(group, fields) for group, fields in zip(groups, hashes, strict=True)]
        found = await self._samples([sample for samples in ids for sample in samples], ahead or {})
        return [
            Group(group, int(fields[b"v0"]), [found[str(sample)].sample for sample in samples], int(fields[b"prompt"]))
            for group, fields, samples in zip(groups, hashes, ids, strict=True)
        ]

    async def read_ahead(self, groups: Sequence[int]) -> dict[str, FinishedSample]:
        """The samples of complete groups by their names, for the `load_groups` that will want them. Raises as it."""
        hashes = await self._hashes("group", [str(group) for group in groups])
        ids = [siblings(group, fields) for group, fields in zip(groups, hashes, strict=True)]
        return await self._samples([sample for samples in ids for sample in samples], {})

    async def ready_groups(self, limit: int) -> list[int]:
        """The complete groups that the next steps take if no older one completes before, at most `limit` of them."""
        key = self._connection.key("ready")
        (scored,) = await self._connection.pipeline(lambda pipe: pipe.zrange(key, 0, -1, withscores=True))
        return [group for _, group in sorted((v0, int(group)) for group, v0 in scored)[:limit]]

    async def group_bytes(self, groups: Sequence[int]) -> list[int]:
        """How much each group's samples hold in the journals, before any of it is read: nearly in proportion to tokens.

        Raises:
            RecordsLost: a group is not there.
        """
        hashes = await self._hashes("group", [str(group) for group in groups])
        owners = [
            (place, str(sample))
            for place, (group, fields) in enumerate(zip(groups, hashes, strict=True))
            for sample in siblings(group, fields)
        ]
        totals = [0] * len(groups)
        ends = await self._connection.fields("sample", [sample for _, sample in owners], ("totals",))
        for (place, _), end in zip(owners, ends, strict=True):
            totals[place] += Totals.parse(end["totals"]).size
        return totals

    async def checkpoints_kept(self, claim: TrainerClaim, oldest_step: int) -> None:
        """Retires the ledger up to `oldest_step`, the oldest checkpoint kept for resume, and those groups' records.

        Raises TrainerSuperseded, and LedgerMismatch as `take_step`.
        """
        more = True
        while more:
            kind, value = await self._as_trainer(claim, "retire_step", oldest_step)
            more = int(value) < oldest_step and kind == b"retired"
        self._covered = max(self._covered, oldest_step)
        known = range(self._covered - KNOWN_STEPS + 1, max(self._entries, default=0) + 1)
        self._entries = {step: entry for step, entry in self._entries.items() if step in known}

    async def finish_run(self) -> None:
        """Tells every producer that the run has ended."""
        await self._connection.script("set_state", "finished")

    async def _as_trainer(self, claim: TrainerClaim, name: str, *arguments: int) -> list[Any]:
        """Runs a trainer's script; asserts the ledger first when this server has not heard it yet."""
        for _ in range(ASSERTIONS):
            reply: list[Any] = await self._connection.script(name, claim.incarnation, claim.nonce, *arguments)
            if reply[0] == b"superseded":
                raise _superseded(claim, reply[1])
            if reply[0] != b"unasserted":
                return reply
            await self._reassert(claim, int(reply[1]))
        raise BufferUnavailable(f"Redis at {self._connection.url} restarted {ASSERTIONS} times within one call")

    async def _reassert(self, claim: TrainerClaim, kept: int) -> None:
        """Writes the claim and the ledger's entries after step `kept` again."""
        lost = range(kept + 1, max(self._entries, default=0) + 1)
        if unknown := [step for step in lost if step not in self._entries]:
            raise LedgerMismatch(
                f"Redis lost its ledger after step {kept}, and this trainer does not know step {unknown[0]} either: "
                f"it lies before this trainer's start, or {KNOWN_STEPS} steps before the oldest checkpoint kept"
            )
        entries = [part for step in lost for part in (step, self._entries[step])]
        kind, *rest = await self._connection.script("reassert", claim.incarnation, claim.nonce, self._covered, *entries)
        if kind == b"superseded":
            raise _superseded(claim, rest[0])
        if kind == b"unopened":
            raise LedgerMismatch(f"Redis at {self._connection.url} came back without the run: all of it is lost")
        await self.serve_again()
        logger.warning(
            "Redis came back with %d steps in its ledger: %d more were written again, and %d groups of them are played "
            "again as far as their records are lost", kept, len(lost), len(rest),
        )  # fmt: skip

    async def _samples(
        self, wanted: Sequence[SampleId], ahead: Mapping[str, FinishedSample]
    ) -> dict[str, FinishedSample]:
        """Finished samples by name, read but for those that were read ahead and are what they were."""
        names = [str(sample) for sample in wanted]
        ends = dict(zip(names, await self._connection.fields("sample", names, _END), strict=True))
        stored = {name: _whole(name, end) for name, end in ends.items()}
        found = {n: ahead[n] for n, end in ends.items() if n in ahead and ahead[n].written == _written(end)}
        journals = await read_journals(self._connection, [entry for n, entry in stored.items() if n not in found])
        for sample in wanted:
            if (name := str(sample)) not in found:
                if len(journals[name]) != stored[name].records:
                    raise RecordsLost(f"sample {name} has {len(journals[name])} of {stored[name].records} records")
                found[name] = FinishedSample(_written(ends[name]), _sample(sample, journals[name], ends[name]))
        return found

    async def _hashes(self, family: str, members: Sequence[str]) -> list[dict[bytes, bytes]]:
        found = await self._connection.hashes(family, members)
        for member, fields in zip(members, found, strict=True):
            if not fields:
                raise RecordsLost(f"{family} {member} is not in the buffer")
        return found


def _entry(step: int, text: bytes) -> LedgerEntry:
    tree = orjson.loads(text)
    return LedgerEntry(step, tuple(tree["groups"]), tree["max_staleness"], tree["max_lag"])


def _superseded(claim: TrainerClaim, newest: Any) -> TrainerSuperseded:
    return TrainerSuperseded(f"trainer incarnation {claim.incarnation} was superseded by {int(newest)}")


def _written(end: Mapping[str, bytes]) -> tuple[bytes, bytes]:
    return end["nonce"], end["totals"]


def _whole(sample: str, end: Mapping[str, bytes]) -> Stored:
    if end["state"] != b"finished":
        raise RecordsLost(f"sample {sample} has not ended")
    totals = Totals.parse(end["totals"])
    return Stored(sample, totals.records, totals.size)


def _sample(sample_id: SampleId, records: Sequence[Record], end: Mapping[str, bytes]) -> Sample:
    sample = sample_of(
        sample_id, records, status=Status(end["status"].decode()),
        stop_reason=StopReason(end["stop_reason"].decode()), reward=float(end["reward"]),
    )  # fmt: skip
    if sample is None:
        raise CorruptRecord(f"sample {sample_id} has no start record")
    sample.check()
    return sample
