"""A pinned engine stays at its version, holds nobody back, and is not pinned for ever."""

from __future__ import annotations

import asyncio

import pytest

from stream_rl.buffer import EngineRecord, TrajectoryBuffer
from stream_rl.sample import WeightVersion


async def only(buffer: TrajectoryBuffer, engine_id: str) -> EngineRecord:
    (found,) = [engine for engine in await buffer.engines() if engine.engine_id == engine_id]
    return found


async def test_the_only_engine_goes_on_serving(buffer: TrajectoryBuffer) -> None:
    assert await buffer.pin_engine("engine-0", 60.0)
    engine = await only(buffer, "engine-0")
    assert (engine.state, engine.version, engine.pinned) == ("serving", WeightVersion(0), WeightVersion(0))
    assert await buffer.lease("p", 1)


async def test_where_others_serve_it_counts_no_more(buffer: TrajectoryBuffer) -> None:
    await buffer.engine_joined("engine-1", "u", 2)
    await buffer.engine_serving("engine-1", WeightVersion(0))
    assert await buffer.pin_engine("engine-0", 60.0)
    await buffer.engine_serving("engine-1", WeightVersion(3))
    pinned = await only(buffer, "engine-0")
    assert (pinned.state, pinned.version, pinned.pinned) == ("joining", None, WeightVersion(0))
    # Its version would be the oldest, and v0 of what is admitted now.
    assert (await buffer.snapshot()).engine_version == 3

    await buffer.release_engine("engine-0")
    assert (await only(buffer, "engine-0")).pinned is None
    await buffer.engine_serving("engine-0", WeightVersion(3))
    assert (await only(buffer, "engine-0")).state == "serving"


async def test_an_engine_that_does_not_serve_is_not_pinned(buffer: TrajectoryBuffer) -> None:
    await buffer.engine_joined("engine-1", "u", 2)
    assert not await buffer.pin_engine("engine-1", 60.0)
    assert (await only(buffer, "engine-1")).pinned is None


async def test_a_pin_that_nobody_releases_ends(buffer: TrajectoryBuffer) -> None:
    assert await buffer.pin_engine("engine-0", 0.1)
    async with asyncio.timeout(10.0):
        while (await only(buffer, "engine-0")).pinned is not None:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_pin_ends_with_its_process(buffer: TrajectoryBuffer, leaves: bool) -> None:
    assert await buffer.pin_engine("engine-0", 600.0)
    if leaves:
        await buffer.engine_left("engine-0")
    await buffer.engine_joined("engine-0", "u", 2)
    assert (await only(buffer, "engine-0")).pinned is None
    await buffer.engine_serving("engine-0", WeightVersion(3), 2)
    assert (await only(buffer, "engine-0")).version == WeightVersion(3)
    await buffer.release_engine("engine-0")  # of whoever had pinned the one before
    assert (await only(buffer, "engine-0")).state == "serving"
