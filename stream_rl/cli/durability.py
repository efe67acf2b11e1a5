"""What a Redis server's own settings promise about acknowledged turns, in words: a pure function of its facts.

Promised is: the death of the server's process loses nothing, that of its machine about one second, a full server
refuses writes instead of dropping keys, and a failover loses no more than `min-replicas-max-lag` seconds. Whatever
falls short of that has a fix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Finding", "examine"]

OLDEST = (7, 0)
"""Scripts declare their flags, so that a full server still trains and retires: since Redis 7."""
UNREADABLE = "this user may not read the setting (CONFIG GET): ask whoever runs the server"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what it means, and a fix where acknowledged turns may be lost beyond the promise."""

    subject: str
    meaning: str
    fix: str | None = None


def examine(facts: Mapping[str, str]) -> list[Finding]:
    """The findings about a server, from `TrajectoryBuffer.server_facts`."""
    parts = (_version, _role, _append_only, _fsync, _errors, _snapshots, _memory, _replicas)
    return [finding for part in parts for finding in part(facts)]


def _version(facts: Mapping[str, str]) -> Iterator[Finding]:
    name = f"Valkey {facts['valkey_version']}" if "valkey_version" in facts else f"Redis {facts['redis_version']}"
    version = tuple(int(part) for part in facts["redis_version"].split(".")[:2])
    fix = None if version >= OLDEST else "run Redis 7 or newer, or Valkey 8 or newer"
    yield Finding(name, "runs the buffer's scripts" if fix is None else "is too old for the buffer's scripts", fix)


def _role(facts: Mapping[str, str]) -> Iterator[Finding]:
    if facts.get("role") == "slave":
        yield Finding("role replica", "it refuses writes", "give the primary's address in buffer.url")
    if facts.get("cluster_enabled") == "1":
        yield Finding(
            "cluster", "a run lies in one slot, so this node must own it: the client follows no redirection",
            "give a server without cluster mode, or a proxy that hides the cluster",
        )  # fmt: skip


def _append_only(facts: Mapping[str, str]) -> Iterator[Finding]:
    if facts.get("aof_enabled") == "1":
        yield Finding("appendonly yes", "every turn is in the append-only file before it is acknowledged")
    else:
        yield Finding(
            "appendonly no", "the death of the server loses every turn since its last snapshot, or all of them",
            "CONFIG SET appendonly yes, and in its configuration file: appendonly yes",
        )  # fmt: skip


def _fsync(facts: Mapping[str, str]) -> Iterator[Finding]:
    if facts.get("aof_enabled") != "1":
        return
    mode = facts.get("appendfsync")
    meanings = {
        "always": "nothing is lost when the server or its machine dies",
        "everysec": "nothing is lost when the server dies; about one second of turns when its machine does",
        "no": "nothing is lost when the server dies; when its machine does, 30 s of turns or so",
        None: UNREADABLE,
    }
    fix = "CONFIG SET appendfsync everysec (or always)" if mode == "no" else None
    yield Finding(f"appendfsync {mode or 'unknown'}", meanings.get(mode, "a mode unknown here"), fix)
    if facts.get("no-appendfsync-on-rewrite") == "yes" and mode != "no":
        yield Finding(
            "no-appendfsync-on-rewrite yes", "while the file is rewritten nothing is synced: 30 s of turns or so",
            "CONFIG SET no-appendfsync-on-rewrite no",
        )  # fmt: skip


def _errors(facts: Mapping[str, str]) -> Iterator[Finding]:
    for name, fix in (
        ("aof_last_write_status", "free its disk: until then it refuses writes"),
        (
            "aof_last_bgrewrite_status",
            "free memory and disk for the rewrite, then BGREWRITEAOF: the file grows meanwhile",
        ),
        ("rdb_last_bgsave_status", "free its disk, then BGSAVE; or CONFIG SET save '' when the append-only file is on"),
    ):
        if facts.get(name, "ok") != "ok":
            yield Finding(f"{name} {facts[name]}", "its last write of that file failed: see its log", fix)


def _snapshots(facts: Mapping[str, str]) -> Iterator[Finding]:
    if saved := facts.get("save"):
        yield Finding(f"save {saved}", "snapshots: beside an append-only file they add nothing to the promise")


def _memory(facts: Mapping[str, str]) -> Iterator[Finding]:
    limit, policy = int(facts.get("maxmemory", 0)), facts.get("maxmemory_policy", "noeviction")
    if not limit:
        yield Finding("maxmemory 0", "no limit of its own: when the machine is full, the kernel ends the server")
    elif policy == "noeviction":
        yield Finding(f"maxmemory {limit / 2**30:.1f} GiB, noeviction", "full, it refuses turns; none is dropped")
    elif policy.startswith("volatile-"):
        yield Finding(
            f"maxmemory {limit / 2**30:.1f} GiB, {policy}", "full, it drops receipts only; turns never expire"
        )
    if limit and policy.startswith("allkeys-"):
        yield Finding(
            f"maxmemory-policy {policy}", f"beyond {limit / 2**30:.1f} GiB it drops turns without a word",
            "CONFIG SET maxmemory-policy noeviction",
        )  # fmt: skip


def _replicas(facts: Mapping[str, str]) -> Iterator[Finding]:
    if facts.get("role") == "slave":
        return
    count, wanted = int(facts.get("connected_slaves", 0)), facts.get("min-replicas-to-write")
    lag = facts.get("min-replicas-max-lag", "10")
    if wanted not in (None, "0"):
        yield Finding(
            f"{count} replicas, min-replicas-to-write {wanted}",
            f"a failover loses at most what came within {lag} s of it; with fewer replicas it refuses turns",
        )  # fmt: skip
    elif not count:
        yield Finding("0 replicas", "no failover: the loss of the machine's disk is the loss of the run's turns")
    elif wanted is None:
        yield Finding(f"{count} replicas, min-replicas-to-write unknown", UNREADABLE)
    else:
        yield Finding(
            f"{count} replicas, min-replicas-to-write 0",
            "a failover loses whatever the replica has not got, however far it is behind",
            "CONFIG SET min-replicas-to-write 1",
        )  # fmt: skip
