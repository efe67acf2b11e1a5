"""Why a sample came back from its last producer, and how long it has waited for the next."""

from __future__ import annotations

import asyncio

from journal_builders import START, turn

from stream_rl.buffer import TrajectoryBuffer


async def test_a_lease_says_why_the_sample_came_back(buffer: TrajectoryBuffer, other: TrajectoryBuffer) -> None:
    (held,) = await buffer.lease("p", 1)
    assert held.returned == ""
    await buffer.commit(held.lease, 0, [START, turn(0)])
    await buffer.release([held.lease])
    (again,) = await buffer.lease("p", 1)
    assert (again.lease.sample_id, again.returned) == (held.lease.sample_id, "released")
    await buffer.heartbeat("p", 0)
    (taken,) = await other.lease("q", 1)
    assert (taken.lease.sample_id, taken.returned) == (held.lease.sample_id, "expired")


async def test_the_longest_wait_for_a_producer_is_seen_until_one_comes(buffer: TrajectoryBuffer) -> None:
    assert (await buffer.snapshot()).oldest_partial_seconds == 0
    first, second = await buffer.lease("p", 2)
    await buffer.release([first.lease])
    await asyncio.sleep(0.05)
    await buffer.release([second.lease])
    assert (await buffer.snapshot()).oldest_partial_seconds >= 0.05
    await buffer.lease("p", 2)
    assert (await buffer.snapshot()).oldest_partial_seconds == 0
