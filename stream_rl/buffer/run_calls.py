"""What the supervisor, the engines' keepers and whoever watches ask of the buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import orjson

from stream_rl.buffer.connection import Connection, nonce
from stream_rl.buffer.records import (
    RECOVERY_KINDS,
    DeadLetter,
    EngineRecord,
    OutcomeRecord,
    ProcessRecord,
    RecoveryKind,
    RunRules,
    RunSnapshot,
    RunState,
)
from stream_rl.errors import ConfigError
from stream_rl.sample import WeightVersion

_COUNTS = (
    "ledger_steps", "incarnation", "admitted", "trained", "filtered", "dead_lettered", "committed_turns",
    "journal_bytes", "refills", "resumes", "refused_commits", "outcomes", "live", "complete", "pending", "leased",
    "resumable", "producers",
)  # fmt: skip


class RunCalls:
    """The run's side of TrajectoryBuffer. All of these raise BufferUnavailable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def open_run(self, rules: RunRules) -> None:
        """Opens the run, or opens it again under (perhaps changed) rules with every counter kept.

        Raises:
            ConfigError: the run exists with another group_size.
        """
        pairs = [part for name, value in asdict(rules).items() for part in (name, +value)]
        found = await self._connection.script("open_run", rules.group_size, *pairs)
        if found != rules.group_size:
            raise ConfigError(
                f"rollout.group_size={rules.group_size}, but this run was begun with {found}: "
                "set it back, or start a new run"
            )

    async def was_opened(self) -> bool:
        """Whether Redis holds a run of this name."""
        key = self._connection.key("run")
        (found,) = await self._connection.pipeline(lambda pipe: pipe.exists(key))
        return bool(found)

    async def evicts(self) -> bool:
        """Whether Redis, once full, would drop keys of the run instead of refusing writes."""
        (memory,) = await self._connection.pipeline(lambda pipe: pipe.info("memory"))
        return bool(memory.get("maxmemory")) and str(memory.get("maxmemory_policy")).startswith("allkeys-")

    async def drain_run(self) -> None:
        """Asks producers to commit and release what they hold; nothing is leased until `open_run`."""
        await self._connection.script("set_state", "draining")

    async def engine_joined(self, engine_id: str, url: str, pid: int) -> None:
        """Registers an engine that has no weights yet: it counts for nothing until it serves."""
        await self._connection.script("engine_joined", engine_id, orjson.dumps({"url": url, "pid": pid}))

    async def engine_serving(self, engine_id: str, version: WeightVersion, pid: int | None = None) -> None:
        """Records that the engine now serves `version`. A version older than its newest one is ignored.

        With `pid`, that server process must still be the one behind the engine's name: one that was started again
        since has not got these weights.

        Raises:
            ValueError: the engine has not joined (or is another process now), or a live group is stamped with a newer
                version, so that tokens of this engine would break that group's v0.
        """
        reply = await self._connection.script(
            "engine_serving", engine_id, version.step, version.incarnation, "" if pid is None else pid
        )
        if reply[0] == b"unknown":
            raise ValueError(f"engine {engine_id} has not joined")
        if reply[0] == b"another":
            raise ValueError(f"engine {engine_id} is no longer process {pid}: it was started again without weights")
        if reply[0] == b"older":
            raise ValueError(f"engine {engine_id} has version {version}, older than v0 {int(reply[1])} of a live group")

    async def engine_left(self, engine_id: str) -> None:
        """Forgets an engine; the oldest serving version is counted without it."""
        await self._connection.script("engine_left", engine_id)

    async def engines(self) -> list[EngineRecord]:
        """Every engine that has joined and not left, by id."""
        names = [self._connection.key(name) for name in ("engines", "versions")]
        known, versions = await self._connection.pipeline(lambda pipe: [pipe.hgetall(name) for name in names])
        return _engines(known, versions)

    async def snapshot(self) -> RunSnapshot:
        """The run at one instant. Raises ConfigError when the run was never opened."""
        reply = _pairs(await self._connection.script("snapshot", *RECOVERY_KINDS))
        run = _pairs(reply[b"run"])
        if not run:
            raise ConfigError(f"there is no run at {self._connection.prefix} in Redis at {self._connection.url}")
        counts = {name: int(reply.get(name.encode(), run.get(name.encode(), 0))) for name in _COUNTS}
        return RunSnapshot(
            state=RunState(run[b"state"].decode()),
            rules=_rules(run),
            recoveries=dict(zip(RECOVERY_KINDS, map(int, reply[b"recoveries"]), strict=True)),
            oldest_v0=_optional(reply[b"oldest_v0"]),
            engine_version=_optional(reply[b"engine_version"]),
            engines=tuple(_engines(_pairs(reply[b"engines"]), _pairs(reply[b"versions"]))),
            processes=tuple(ProcessRecord(**orjson.loads(text)) for text in sorted(reply[b"processes"])),
            **counts,
        )

    async def register_process(self, record: ProcessRecord) -> None:
        """Makes a process known, or known anew, under its name."""
        key, text = self._connection.key("processes"), orjson.dumps(record)
        await self._connection.pipeline(lambda pipe: pipe.hset(key, record.name, text))

    async def count_recovery(self, kind: RecoveryKind) -> None:
        """Counts one process brought back after a death."""
        key, token = self._connection.key("recoveries", kind), nonce()
        await self._connection.pipeline(lambda pipe: pipe.sadd(key, token))

    async def outcomes(self, limit: int) -> list[OutcomeRecord]:
        """The oldest `limit` ended attempts that were not trimmed yet."""
        key = self._connection.key("outcomes")
        (found,) = await self._connection.pipeline(lambda pipe: pipe.lrange(key, 0, limit - 1))
        return [_outcome(orjson.loads(text)) for text in found]

    async def trim_outcomes(self, upto: int) -> None:
        """Drops the outcomes numbered `upto` and lower, once they are written elsewhere."""
        await self._connection.script("trim_outcomes", upto)

    async def dead_letters(self) -> list[DeadLetter]:
        """The groups given up, oldest first."""
        key = self._connection.key("dead")
        (found,) = await self._connection.pipeline(lambda pipe: pipe.hgetall(key))
        return [_dead_letter(int(group), orjson.loads(text)) for group, text in sorted(found.items(), key=_number)]

    async def journal_turns(self) -> dict[str, int]:
        """Complete turns committed by each sample that has not ended, keyed by the sample's id."""
        flat = await self._connection.script("journal_turns")
        return {sample.decode(): int(turns) for sample, turns in zip(flat[::2], flat[1::2], strict=True)}


def _pairs(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _rules(run: Mapping[bytes, bytes]) -> RunRules:
    kinds: dict[str, Callable[[bytes], Any]] = {"bool": lambda text: bool(int(text)), "float": float, "int": int}
    return RunRules(**{field.name: kinds[str(field.type)](run[field.name.encode()]) for field in fields(RunRules)})


def _number(item: tuple[bytes, Any]) -> int:
    return int(item[0])


def _optional(value: bytes) -> int | None:
    return int(value) if value else None


def _engines(known: Mapping[bytes, bytes], versions: Mapping[bytes, bytes]) -> list[EngineRecord]:
    records = []
    for engine, text in sorted(known.items()):
        about, version = orjson.loads(text), versions.get(engine)
        records.append(
            EngineRecord(
                engine.decode(), about["url"], about["pid"], "serving" if version else "joining",
                WeightVersion.parse(version.decode()) if version else None,
            )
        )  # fmt: skip
    return records


def _outcome(tree: dict[str, Any]) -> OutcomeRecord:
    reward = tree.pop("reward")
    return OutcomeRecord(**tree, reward=float(reward) if reward else None)


def _dead_letter(group: int, tree: dict[str, Any]) -> DeadLetter:
    # An empty Lua table is an object in JSON.
    return DeadLetter(group, tree["v0"], tree["prompt"], tree["stop_reason"], tree["detail"], tuple(tree["finished"]))
