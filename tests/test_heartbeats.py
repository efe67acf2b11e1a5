"""A producer that was heard and then is not has hung; one that loads, or lived before, has not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stream_rl.buffer import EmbeddedServer, TrajectoryBuffer
from stream_rl.errors import ProcessDied
from stream_rl.heartbeats import patience, until_silent

PAUSE = 0.01
LONG = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "buffer", fsync="no") as running:
        yield running


@pytest.fixture
async def buffer(server: EmbeddedServer) -> AsyncIterator[TrajectoryBuffer]:
    async with await TrajectoryBuffer.connect(server.url, "run", timeout=5.0) as connected:
        yield connected


@asynccontextmanager
async def life(server: EmbeddedServer) -> AsyncIterator[TrajectoryBuffer]:
    """A process of a producer's: each has a connection, and so a nonce, of its own."""
    async with await TrajectoryBuffer.connect(server.url, "run", timeout=5.0) as connected:
        yield connected


async def watched(buffer: TrajectoryBuffer) -> asyncio.Task[None]:
    """Watches producer-1, whose life begins once this returns."""
    live_producers, looked = buffer.live_producers, asyncio.Event()

    async def look() -> list[str]:
        found = await live_producers()
        looked.set()
        return found

    buffer.live_producers = look  # type: ignore[method-assign]
    watching = asyncio.create_task(until_silent(buffer, "producer-1", seconds=5 * PAUSE, pause=PAUSE))
    await looked.wait()
    return watching


async def goes_on(watching: asyncio.Task[None]) -> None:
    """For many times as long as one that was heard may be silent."""
    done, _ = await asyncio.wait([watching], timeout=50 * PAUSE)
    assert not done


async def test_one_that_is_heard_no_more_has_died(buffer: TrajectoryBuffer, server: EmbeddedServer) -> None:
    async with life(server) as producer, asyncio.timeout(LONG):
        watching = await watched(buffer)
        for _ in range(10):
            await producer.heartbeat("producer-1", 2.0)
            await asyncio.sleep(PAUSE)
        assert not watching.done()
        await producer.heartbeat("producer-1", 0.05)
        with pytest.raises(ProcessDied, match=r"no heartbeat for 0\.05 s beyond producer\.lease_seconds"):
            await watching


async def test_one_whose_record_another_producer_took_away_has_died(
    buffer: TrajectoryBuffer, server: EmbeddedServer
) -> None:
    async with life(server) as producer, asyncio.timeout(LONG):
        watching = await watched(buffer)
        await producer.heartbeat("producer-1", 0.2)
        await buffer.heartbeat("producer-2", LONG)
        while not watching.done():
            await buffer.lease("producer-2", 1)  # takes the samples of silent ones
            await asyncio.sleep(PAUSE)
        assert isinstance(watching.exception(), ProcessDied)


async def test_what_is_heard_of_others_and_before_the_start_is_not_its_own(
    buffer: TrajectoryBuffer, server: EmbeddedServer
) -> None:
    async with life(server) as before:
        await before.heartbeat("producer-1", 0.1)
        watching = await watched(buffer)
        await before.heartbeat("producer-10", 0.05)
        await goes_on(watching)
    watching.cancel()


@pytest.mark.parametrize(("lease_seconds", "seconds"), [(15.0, 30.0), (1.0, 10.0)])
def test_in_all_three_leases_or_ten_seconds_more_than_one(lease_seconds: float, seconds: float) -> None:
    assert patience(lease_seconds) == seconds
