"""What the supervisor and whoever watches ask of the buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import orjson

from stream_rl.buffer.connection import Connection, nonce
from stream_rl.buffer.engine_calls import engine_records
from stream_rl.buffer.records import (
    RECOVERY_KINDS,
    DeadLetter,
    OutcomeRecord,
    ProcessRecord,
    RecoveryKind,
    RunRules,
    RunSnapshot,
    RunState,
)
from stream_rl.errors import ConfigError

__all__ = ["RunCalls"]

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
            oldest_partial_seconds=int(reply[b"partial_ms"]) / 1000,
            oldest_v0=_optional(reply[b"oldest_v0"]),
            engine_version=_optional(reply[b"engine_version"]),
            engines=tuple(engine_records(_pairs(reply[b"engines"]), _pairs(reply[b"versions"]))),
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


def _outcome(tree: dict[str, Any]) -> OutcomeRecord:
    reward = tree.pop("reward")
    return OutcomeRecord(**tree, reward=float(reward) if reward else None)


def _dead_letter(group: int, tree: dict[str, Any]) -> DeadLetter:
    # An empty Lua table is an object in JSON.
    return DeadLetter(group, tree["v0"], tree["prompt"], tree["stop_reason"], tree["detail"], tuple(tree["finished"]))
