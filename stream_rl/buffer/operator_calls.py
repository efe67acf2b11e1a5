"""What whoever looks after a run asks of its buffer: what is held, requeue, purge, and what the server says of itself.

A group is held from its admission until `checkpoints_kept` retires it; dead letters stay. Everything is read in pieces
of bounded size. What a live run changes meanwhile is seen as it is at each read: a group retired since is left out.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import orjson
import redis.exceptions as faults

from stream_rl.buffer.connection import Connection, nonce
from stream_rl.buffer.journals import Stored, Totals, read_journals, sample_of, siblings
from stream_rl.errors import BufferUnavailable, ConfigError, CorruptRecord, RecordsLost
from stream_rl.sample import Sample, SampleId, Status, StopReason

__all__ = ["HeldGroup", "HeldSample", "OperatorCalls", "Requeued"]

GROUPS_PER_READ = 64
KEYS_PER_SCAN = 1000
SETTINGS = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "save", "maxmemory", "maxmemory-policy",
            "min-replicas-to-write", "min-replicas-max-lag")  # fmt: skip
"""The server's settings that decide what a crash may lose."""


@dataclass(frozen=True, slots=True)
class HeldSample:
    """A sibling's newest attempt: queued, leased, returned, finished, failed or dropped, and its journal's totals.

    `producer` holds its lease, or held it last; empty for one never leased. Unfinished: pending, without a reason.
    """

    sample_id: SampleId
    state: str
    status: Status
    stop_reason: StopReason | None
    reward: float | None
    turns: int
    response_length: int
    generated: int
    records: int
    size: int
    leases: int
    producer: str


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """A group: live, complete, trained (in `step`) or dead_lettered, and its siblings in order."""

    number: int
    state: str
    v0: int
    prompt_index: int
    refills: int
    step: int | None
    samples: tuple[HeldSample, ...]


@dataclass(frozen=True, slots=True)
class Requeued:
    """`first`: this call did it. `group`: the new group, once it was admitted."""

    first: bool
    group: int | None = None


class OperatorCalls:
    """The operator's side of TrajectoryBuffer. All of these raise BufferUnavailable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def held_groups(self) -> dict[int, int | None]:
        """Every group held, in order, with the step that trained it."""
        live, ledger, dead = (self._connection.key(name) for name in ("live", "ledger", "dead"))
        admitted, steps, given_up = await self._connection.pipeline(
            lambda pipe: (pipe.zrange(live, 0, -1), pipe.hgetall(ledger), pipe.hkeys(dead)), atomic=True
        )
        held: dict[int, int | None] = {int(group): None for group in [*admitted, *given_up]}
        held |= {group: int(step) for step, entry in steps.items() for group in orjson.loads(entry)["groups"]}
        return dict(sorted(held.items()))

    async def held(self, groups: Mapping[int, int | None]) -> AsyncIterator[HeldGroup]:
        """The groups that `held_groups` names, without those retired since."""
        numbers, read = list(groups), self._connection.hashes
        for start in range(0, len(numbers), GROUPS_PER_READ):
            some = numbers[start : start + GROUPS_PER_READ]
            hashes = dict(zip(some, await read("group", [str(group) for group in some]), strict=True))
            ids = [sample for group, fields in hashes.items() for sample in siblings(group, fields)]
            samples = dict(zip(ids, await read("sample", [str(sample) for sample in ids]), strict=True))
            for group, fields in hashes.items():
                if fields:
                    there = [_sample(id_, samples[id_]) for id_ in siblings(group, fields) if samples[id_]]
                    yield _group(group, fields, groups[group], there)

    async def trajectory(self, held: HeldSample) -> Sample | None:
        """All that `held` had committed, an open turn included; None when it never began, or has gone since.

        Raises:
            RecordsLost, CorruptRecord: a record is not there, or does not decode.
        """
        name = str(held.sample_id)
        try:
            journals = await read_journals(self._connection, [Stored(name, held.records, held.size)])
        except (CorruptRecord, RecordsLost):
            if await self._is_as(held):
                raise
            return None
        return sample_of(
            held.sample_id, journals[name], status=held.status, stop_reason=held.stop_reason, reward=held.reward
        )

    async def requeue(self, group: int) -> Requeued:
        """Lets the next admission take a dead letter's prompt, as a new group; each dead letter once.

        Raises:
            ConfigError: the group is no dead letter.
        """
        reply = await self._connection.script("requeue", group, nonce())
        if reply[0] == b"unknown":
            raise ConfigError(f"group {group} is no dead letter of this run: `stream-rl dead-letters list` shows them")
        if reply[0] == b"again":
            return Requeued(False, int(reply[1]) if reply[1] else None)
        return Requeued(True)

    async def requeued(self, groups: Sequence[int]) -> dict[int, Requeued]:
        """Those of the dead letters that were requeued, and as which group each came back."""
        hashes = await self._connection.hashes("group", [str(group) for group in groups])
        found = [(group, fields.get(b"requeued_as")) for group, fields in zip(groups, hashes, strict=True)
                 if b"requeue_nonce" in fields]  # fmt: skip
        return {group: Requeued(False, int(again) if again else None) for group, again in found}

    async def live_producers(self) -> list[str]:
        """Producers whose heartbeat has not run out, by the server's clock; each life as `<producer>:<nonce>`."""
        key = self._connection.key("holders")
        (seconds, micros), holders = await self._connection.pipeline(
            lambda pipe: (pipe.time(), pipe.zrange(key, 0, -1, withscores=True))
        )
        return [holder.decode() for holder, until in holders if until > 1000 * seconds + micros / 1000]

    async def purge(self) -> AsyncIterator[int]:
        """Deletes every key of the run and nothing else; yields how many are gone, after each bounded call."""
        prefix = self._connection.prefix
        pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", prefix) + "*"
        cursor, gone = 0, 0
        while True:
            ((cursor, found),) = await self._connection.pipeline(
                lambda pipe, at=cursor: pipe.scan(at, match=pattern, count=KEYS_PER_SCAN)  # type: ignore[misc]
            )
            if names := [key for key in found if key.startswith(prefix.encode())]:
                await self._connection.pipeline(lambda pipe, names=names: pipe.unlink(*names))  # type: ignore[misc]
                gone += len(names)
                yield gone
            if cursor == 0:
                return

    async def server_facts(self) -> dict[str, str]:
        """INFO of the server, and of its SETTINGS those that this user may read, as text."""
        (about,) = await self._connection.pipeline(lambda pipe: pipe.info())
        try:
            (settings,) = await self._connection.pipeline(lambda pipe: pipe.config_get(*SETTINGS))
        except faults.ResponseError:  # renamed or removed, as hosted servers do
            settings = {}
        except BufferUnavailable as error:
            if not isinstance(error.__cause__, faults.NoPermissionError):
                raise
            settings = {}
        return {name: str(value) for name, value in {**about, **settings}.items()}

    async def _is_as(self, held: HeldSample) -> bool:
        """Whether the sample was neither retired nor restarted since it was looked at."""
        (group,) = await self._connection.hashes("group", [str(held.sample_id.group)])
        (sample,) = await self._connection.hashes("sample", [str(held.sample_id)])
        return bool(group) and Totals.parse(sample.get(b"totals")).records >= held.records


def _group(number: int, fields: Mapping[bytes, bytes], step: int | None, samples: Sequence[HeldSample]) -> HeldGroup:
    v0, prompt, refills = (int(fields[name]) for name in (b"v0", b"prompt", b"refills"))
    return HeldGroup(number, fields[b"state"].decode(), v0, prompt, refills, step, tuple(samples))


def _sample(sample_id: SampleId, fields: Mapping[bytes, bytes]) -> HeldSample:
    totals = Totals.parse(fields.get(b"totals"))

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode()

    return HeldSample(
        sample_id, text(b"state"), Status(text(b"status") or Status.PENDING),
        StopReason(text(b"stop_reason")) if b"stop_reason" in fields else None,
        float(fields[b"reward"]) if b"reward" in fields else None,
        turns=totals.turns, response_length=totals.response_length, generated=totals.generated,
        records=totals.records, size=totals.size, leases=int(fields.get(b"lease", 0)),
        producer=text(b"holder").rpartition(":")[0],
    )  # fmt: skip
