"""Answers find their calls: in order, whole, whatever is cancelled, lost or late."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.exceptions as faults
from redis.asyncio import ConnectionPool

from stream_rl.buffer import EmbeddedServer
from stream_rl.buffer.wire import LARGE, READ_BYTES, Wire, packed

SIZES = (0, 1, LARGE - 1, LARGE, LARGE + 1, READ_BYTES - 10, 2 * READ_BYTES + 1, 3 * READ_BYTES, 2**20 + 7)


def wire_to(server: EmbeddedServer, timeout: float = 5.0) -> Wire:
    pool = ConnectionPool.from_url(server.url, protocol=2, socket_timeout=timeout)
    return Wire(pool.make_connection, timeout)


@pytest.fixture
async def wire(server: EmbeddedServer) -> AsyncIterator[Wire]:
    made = wire_to(server)
    yield made
    made.close()


def plainly(reply: Any) -> Any:
    return bytes(reply) if isinstance(reply, memoryview) else reply


async def test_calls_of_one_tick_leave_together_behind_the_first_and_get_their_own_answers(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wire.call([("PING",)])
    assert wire._transport is not None
    writes = []
    write = wire._transport.write
    monkeypatch.setattr(wire._transport, "write", lambda data: (writes.append(data), write(data)))
    answers = await asyncio.gather(*(wire.call([("ECHO", str(n)), ("ECHO", b"x")]) for n in range(100)))
    assert answers == [[str(n).encode(), b"x"] for n in range(100)]
    assert len(writes) == 2  # the first finds the socket idle


async def test_answers_of_every_size_come_whole_and_in_order(wire: Wire) -> None:
    values = [os.urandom(size) for size in SIZES]
    keys = [f"wire:{size}" for size in SIZES]
    pieces = [[value[:7], memoryview(value)[7:]] for value in values]
    await wire.call([("SET", key, parts) for key, parts in zip(keys, pieces, strict=True)])
    for plain in (True, False):
        calls = [wire.call([("GET", key) for key in keys], plain=plain), wire.call([("ECHO", "between")])]
        calls.append(wire.call([("GET", "wire:absent"), ("LPUSH", keys[1], "x"), ("GET", keys[-1])], plain=plain))
        many, between, odd = await asyncio.gather(*calls)
        assert [plainly(reply) for reply in many] == values
        assert between == [b"between"]
        assert odd[0] is None
        assert isinstance(odd[1], faults.ResponseError)
        assert plainly(odd[2]) == values[-1]
    assert isinstance((await wire.call([("GET", keys[-1])], plain=True))[0], memoryview)
    (listed,) = await wire.call([("MGET", *keys)])
    assert listed == values


async def test_a_cancelled_call_takes_no_ones_answer(wire: Wire) -> None:
    calls = [asyncio.create_task(wire.call([("ECHO", str(n))])) for n in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    assert await calls[2] == [b"2"]
    assert await calls[0] == [b"0"]
    with pytest.raises(asyncio.CancelledError):
        await calls[1]


async def test_a_lost_socket_fails_the_calls_under_way_and_the_next_connects(
    wire: Wire, server: EmbeddedServer
) -> None:
    (me,) = await wire.call([("CLIENT", "ID")])
    waiting = asyncio.create_task(wire.call([("BLPOP", "wire:never", 0)]))
    await asyncio.sleep(0)
    other = wire_to(server)
    assert await other.call([("CLIENT", "KILL", "ID", me)]) == [1]
    other.close()
    with pytest.raises(faults.ConnectionError, match="the connection was lost"):
        await waiting
    assert await wire.call([("PING",)]) == [b"PONG"]


async def test_a_server_that_stands_still_fails_its_calls_in_time(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data", fsync="no") as still:
        wire = wire_to(still, timeout=0.1)
        await wire.call([("PING",)])
        os.kill(still.pid, signal.SIGSTOP)
        try:
            with pytest.raises(faults.TimeoutError, match=r"no answer within 0\.1 s"):
                await wire.call([("PING",)])
        finally:
            os.kill(still.pid, signal.SIGCONT)
        wire.close()


async def test_more_than_the_kernel_takes_at_once_arrives(wire: Wire) -> None:
    value = os.urandom(2**20)
    answers = await asyncio.gather(*(wire.call([("SET", f"wire:many:{n}", [value])]) for n in range(24)))
    assert answers == [[b"OK"]] * 24
    for n in (0, 23):
        assert plainly((await wire.call([("GET", f"wire:many:{n}")], plain=True))[0]) == value
    await wire.call([("DEL", *(f"wire:many:{n}" for n in range(24)))])


def test_a_value_in_pieces_is_packed_as_if_it_were_whole() -> None:
    whole = b"".join(packed(("SET", "key", b"abcdef", 3)))
    assert b"".join(packed(("SET", "key", [b"ab", memoryview(b"cd"), b"ef"], 3))) == whole
