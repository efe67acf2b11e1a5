"""What is said of a server's settings: judged from its facts, and from real servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import StreamRL

from stream_rl.buffer import EmbeddedServer
from stream_rl.cli.durability import examine

SOUND = {
    "redis_version": "7.2.4", "valkey_version": "9.1.0", "role": "master", "aof_enabled": "1",
    "appendfsync": "everysec", "no-appendfsync-on-rewrite": "no", "save": "", "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "connected_slaves": "0", "min-replicas-to-write": "0", "min-replicas-max-lag": "10", "aof_last_write_status": "ok",
    "aof_last_bgrewrite_status": "ok", "rdb_last_bgsave_status": "ok", "cluster_enabled": "0",
}  # fmt: skip


def fixes(**changed: str) -> list[str]:
    return [finding.fix for finding in examine(SOUND | changed) if finding.fix]


def test_a_sound_server_needs_no_fix() -> None:
    assert fixes() == []
    text = "\n".join(f"{finding.subject}: {finding.meaning}" for finding in examine(SOUND))
    for expected in ("Valkey 9.1.0", "appendfsync everysec: nothing is lost when the server dies; about one second",
                     "maxmemory 0", "0 replicas: no failover"):  # fmt: skip
        assert expected in text


@pytest.mark.parametrize(
    ("changed", "fix"),
    [
        ({"aof_enabled": "0"}, "CONFIG SET appendonly yes"),
        ({"appendfsync": "no"}, "CONFIG SET appendfsync everysec"),
        ({"no-appendfsync-on-rewrite": "yes"}, "CONFIG SET no-appendfsync-on-rewrite no"),
        ({"maxmemory": "1000", "maxmemory_policy": "allkeys-lru"}, "CONFIG SET maxmemory-policy noeviction"),
        ({"connected_slaves": "2"}, "CONFIG SET min-replicas-to-write 1"),
        ({"redis_version": "6.2.1"}, "run Redis 7 or newer"),
        ({"role": "slave"}, "give the primary's address"),
        ({"cluster_enabled": "1"}, "without cluster mode"),
        ({"aof_last_write_status": "err"}, "free its disk"),
        ({"aof_last_bgrewrite_status": "err"}, "free memory and disk"),
        ({"rdb_last_bgsave_status": "err"}, "then BGSAVE"),
    ],
)
def test_what_falls_short_has_one_fix(changed: dict[str, str], fix: str) -> None:
    (found,) = fixes(**changed)
    assert fix in found


@pytest.mark.parametrize(
    "changed",
    [
        {"appendfsync": "always"},
        {"connected_slaves": "2", "min-replicas-to-write": "1"},
        {"maxmemory": "1000"},
        {"maxmemory": "1000", "maxmemory_policy": "volatile-lru"},
        {"maxmemory_policy": "allkeys-lru"},
        {"save": "3600 1"},
    ],
)
def test_what_is_within_the_promise(changed: dict[str, str]) -> None:
    assert fixes(**changed) == []


def test_settings_that_may_not_be_read_are_said_to_be_unknown() -> None:
    known = {name: value for name, value in SOUND.items() if "-" not in name and name != "appendfsync"}
    findings = examine(known | {"connected_slaves": "1"})
    assert sum("may not read the setting" in finding.meaning for finding in findings) == 2


def test_the_embedded_server_keeps_the_promise(stream_rl: StreamRL, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data") as server:
        answer = stream_rl("buffer", "check", server.url)
    assert answer.code == 0
    assert "FIX" not in answer.out


def test_a_server_without_a_file_is_told_how(stream_rl: StreamRL, plain_valkey: Callable[..., str]) -> None:
    answer = stream_rl("buffer", "check", plain_valkey("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"))
    assert answer.code == 1
    bad = [line for line in answer.out.splitlines() if line.startswith("FIX")]
    assert [line.rpartition("; ")[2].split(",")[0] for line in bad] == [
        "CONFIG SET appendonly yes", "CONFIG SET maxmemory-policy noeviction"
    ]  # fmt: skip


def test_a_server_with_a_password(
    stream_rl: StreamRL, plain_valkey: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = plain_valkey("--requirepass", "right", "--appendonly", "yes")
    assert stream_rl("buffer", "check", "redis://127.0.0.1:1").code == 2
    assert "refused the login" in stream_rl("buffer", "check", url).err
    monkeypatch.setenv("OTHER", "right")
    assert stream_rl("buffer", "check", url, "--password-env", "OTHER").code == 0
