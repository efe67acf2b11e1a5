"""Faults of the connection: waited out, or named with the setting; a password is never shown."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from journal_builders import RULES, START, begin, outcome, turn
from redis.exceptions import ResponseError

from stream_rl.buffer import EmbeddedServer, TrajectoryBuffer
from stream_rl.buffer.connection import masked
from stream_rl.buffer.producer_calls import ProducerCalls
from stream_rl.errors import BufferFull, BufferUnavailable, ConfigError
from stream_rl.sample import LedgerEntry, WeightVersion


async def test_an_unreachable_server_is_named_within_the_timeout() -> None:
    begun = time.monotonic()
    with pytest.raises(BufferUnavailable, match=r"redis://u:\*\*\*@127.0.0.1:1/0 \(setting buffer.url\)") as caught:
        await TrajectoryBuffer.connect("redis://u:secret@127.0.0.1:1/0", "run", timeout=0.2)
    assert time.monotonic() - begun < 5
    assert "secret" not in str(caught.value)


async def test_a_url_of_another_kind_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"buffer\.url='http://x'"):
        await TrajectoryBuffer.connect("http://x", "run")


def test_passwords_are_masked() -> None:
    assert masked("rediss://user:p%40ss@host:6379/2") == "rediss://user:***@host:6379/2"
    assert masked("redis://:secret@host") == "redis://:***@host"
    assert masked("unix:///tmp/socket") == "unix:///tmp/socket"


async def test_wrong_and_missing_passwords_name_the_setting(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data") as server:
        async with await TrajectoryBuffer.connect(server.url, "run") as buffer:
            await buffer._connection.pipeline(lambda pipe: pipe.config_set("requirepass", "right"))
        for password in (None, "wrong"):
            with pytest.raises(BufferUnavailable, match=r"setting buffer\.password_env") as caught:
                await TrajectoryBuffer.connect(server.url, "run", password=password, timeout=5.0)
            assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
        async with await TrajectoryBuffer.connect(server.url, "run", password="right") as buffer:
            await buffer.open_run(RULES)


async def test_redis_7_says_otherwise_what_a_script_may_not_call(
    buffer: TrajectoryBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(_commands: object, **_: object) -> list[object]:
        return [ResponseError("The user executing the script can't run this command or subcommand script: 47716c")]

    monkeypatch.setattr("stream_rl.buffer.wire.Wire.call", lambda _self, commands, **keys: call(commands, **keys))
    with pytest.raises(BufferUnavailable, match="does not let this user"):
        await buffer.claim_trainer()


async def test_a_call_waits_out_a_restart(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data", fsync="always") as server:
        async with await TrajectoryBuffer.connect(server.url, "run", timeout=30.0) as buffer:
            await begin(buffer)
            (sample,) = await buffer.lease("p", 1)
            os.kill(server.pid, signal.SIGKILL)
            commit = asyncio.create_task(buffer.commit(sample.lease, 0, [START, turn(0)]))
            await asyncio.to_thread(server.start)
            await commit
            assert await buffer.journal_turns() == {"0-0": 1}


async def test_a_full_server_refuses_data_and_still_retires(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data", fsync="no") as server:
        async with await TrajectoryBuffer.connect(server.url, "run", room_timeout=0.1) as buffer:
            await begin(buffer)
            (sample,) = await buffer.lease("p", 1)
            await limit_memory(buffer, "1mb")
            with pytest.raises(BufferFull, match=r"setting buffer\.url.* raise its maxmemory, or keep less"):
                await buffer.commit(sample.lease, 0, [START, turn(0)])
            claim = await buffer.claim_trainer()
            await buffer.take_step(claim, 1)
            await buffer.checkpoints_kept(claim, 0)
            assert await buffer.lease("p", 1) == []
            assert buffer.waits_for == "maxmemory"
            assert (await buffer.snapshot()).leased == 1
            await buffer.release([sample.lease])
            await limit_memory(buffer, "0")
            (again,) = await buffer.lease("p", 1)
            await buffer.commit(again.lease, 0, [START, turn(0)])


async def test_a_run_that_filled_redis_goes_on_once_there_is_room(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data", fsync="no", max_memory=20 * 2**20) as server:
        async with await TrajectoryBuffer.connect(server.url, "run", room_timeout=60.0) as buffer:
            await begin(buffer)
            claim = await buffer.claim_trainer()
            records = [START, turn(0, 250_000)]  # 2 MB a sample, 8 MB a step: two steps fit, a third does not
            for step in (1, 2):
                for sample in await buffer.lease("p", 4):
                    await buffer.commit(sample.lease, 0, records, outcome())
                assert isinstance(await buffer.take_step(claim, step), LedgerEntry)
                await buffer.engine_serving("engine-0", WeightVersion(step))
            commits = [
                asyncio.create_task(buffer.commit(sample.lease, 0, records, outcome()))
                for sample in await buffer.lease("p", 4)
            ]
            _, waiting = await asyncio.wait(commits, timeout=1.0)
            assert waiting
            await buffer.checkpoints_kept(claim, 2)
            await asyncio.gather(*commits)
            assert isinstance(await buffer.take_step(claim, 3), LedgerEntry)


async def limit_memory(buffer: TrajectoryBuffer, limit: str) -> None:
    await buffer._connection.pipeline(lambda pipe: pipe.config_set("maxmemory", limit))


async def test_a_lease_whose_answer_was_lost_is_handed_out_again(
    buffer: TrajectoryBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = buffer._connection.script

    async def cut_off(name: str, *arguments: str | int | float | bytes, **options: bool) -> object:
        await script(name, *arguments, **options)
        raise BufferUnavailable("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(buffer._connection, "script", cut_off)
        with pytest.raises(BufferUnavailable):
            await buffer.lease("p", 3)
    assert isinstance(buffer, ProducerCalls)
    again = await buffer.lease("p", 3)
    assert sorted(str(sample.lease.sample_id) for sample in again) == ["0-0", "0-1", "1-0"]
    assert {sample.lease.number for sample in again} == {1}
    assert (await buffer.snapshot()).leased == 3


async def test_a_cancellation_that_the_client_loses_still_ends_the_call(buffer: TrajectoryBuffer) -> None:
    async def deaf() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "an answer that came at the same moment"
        raise AssertionError

    call = asyncio.create_task(buffer._connection.until_answered(deaf))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
