"""The embedded server keeps what it acknowledged through kill -9, and never outlives who started it."""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from journal_builders import START, begin, turn

from stream_rl.buffer import EmbeddedServer, TrajectoryBuffer
from stream_rl.errors import BufferInUse, BufferUnavailable


@pytest.fixture
def own(tmp_path: Path) -> EmbeddedServer:
    return EmbeddedServer(tmp_path / "data", fsync="always")


def kill(server: EmbeddedServer) -> None:
    """kill -9, and wait until it is gone."""
    os.kill(server.pid, signal.SIGKILL)
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    assert not server.alive


async def test_nothing_acknowledged_is_lost_by_kill_9(own: EmbeddedServer) -> None:
    with own:
        url = own.url
        async with await TrajectoryBuffer.connect(url, "run") as buffer:
            await begin(buffer)
            (sample,) = await buffer.lease("p", 1)
            await buffer.commit(sample.lease, 0, [START])
            for index in range(20):
                await buffer.commit(sample.lease, index + 1, [turn(index)])
            before = await buffer.snapshot()
            kill(own)
            own.start()
            assert own.url == url
            assert await buffer.snapshot() == before
            await buffer.commit(sample.lease, 21, [turn(20)])
            assert await buffer.journal_turns() == {"0-0": 21}


def test_stop_writes_everything_and_start_reads_it(own: EmbeddedServer) -> None:
    own.start()
    ask(own, b"SET stream_rl:{x}:y z")
    own.stop()
    assert not own.alive
    own.start()
    assert ask(own, b"GET stream_rl:{x}:y") == b"$1\r\nz\r\n"
    own.stop()


def ask(server: EmbeddedServer, command: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server.url.removeprefix("unix://"))
        connection.sendall(command + b"\r\n")
        return connection.recv(1000)


def test_only_a_private_socket_and_the_asked_durability(own: EmbeddedServer) -> None:
    with own:
        mode = os.stat(own.url.removeprefix("unix://")).st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o700
        settings = {b"port": b"0", b"appendonly": b"yes", b"appendfsync": b"always", b"maxmemory-policy": b"noeviction"}
        for name, value in settings.items():
            assert ask(own, b"CONFIG GET " + name).split(b"\r\n")[-2] == value
    assert not Path(own.url.removeprefix("unix://")).exists()


def test_start_is_idempotent(own: EmbeddedServer) -> None:
    with own:
        pid = own.pid
        own.start()
        assert own.pid == pid


def test_a_server_that_was_killed_this_moment_is_started_anew(own: EmbeddedServer) -> None:
    with own:
        for _ in range(3):
            killed = own.pid
            os.kill(killed, signal.SIGKILL)
            own.start()
            assert own.pid != killed
            assert ask(own, b"PING") == b"+PONG\r\n"


def test_one_server_at_a_time_has_a_folder(own: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream_rl.buffer.embedded.LOCK_SECONDS", 0.05)
    with own:
        ask(own, b"SET stream_rl:{x}:y z")
        second = EmbeddedServer(own.folder)
        with pytest.raises(BufferInUse, match=r"another embedded Valkey has .*data"):
            second.start()
        # A crash does not open the folder to others: the first comes back over it.
        kill(own)
        with pytest.raises(BufferInUse):
            second.start()
        own.start()
        own.stop()
        with second:
            assert ask(second, b"GET stream_rl:{x}:y") == b"$1\r\nz\r\n"


def test_a_long_temporary_folder_does_not_break_the_socket(
    own: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with own:
        assert len(own.url) < 107
        assert not list(deep.iterdir())


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "appendonlydir").mkdir(parents=True)
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("not a manifest\n")
    with pytest.raises(BufferUnavailable, match=r"over .*data did not start: .*"):
        EmbeddedServer(folder).start()


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from stream_rl.buffer import EmbeddedServer\n"
        "server = EmbeddedServer(pathlib.Path(sys.argv[1])); server.start(); print(server.pid, flush=True); input()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pidfd = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    # A pidfd is readable once its process has ended.
    assert select.select([pidfd], [], [], 10.0)[0]
    os.close(pidfd)
    parent.stdout.close()
    assert parent.stdin is not None
    parent.stdin.close()
