"""What the metrics say of resumes: why samples came back, how their environments did, and what was not done again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY
from rollouts import ids
from scripted_env import World
from test_worker import ScriptedFleet, drained

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.producer.worker import Producer

SAMPLES = 4
CAUSES = ("released", "expired", "")
WAYS = ("snapshot", "replay", "restart")


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    World.clear()
    yield
    World.clear()


@pytest.fixture
def unending(rollout):
    """`unending(kind)`: four samples of an environment that never ends, of this resume class."""
    return lambda kind: rollout(**{
        "environment.path": "scripted_env", "environment.args": {"kind": kind}, "trainer.steps": 1,
        "producer.lease_seconds": 0.3, "rollout.max_turns": 50,
    })  # fmt: skip


def resumed() -> dict[tuple[str, str], float]:
    """Samples resumed so far, by why they came back and how their environment did."""
    labels = [{"environment": "scripted_env", "cause": cause, "how": how} for cause in CAUSES for how in WAYS]
    values = [REGISTRY.get_sample_value("stream_rl_resumes_total", each) or 0.0 for each in labels]
    return {(each["cause"], each["how"]): value for each, value in zip(labels, values, strict=True)}


def saved() -> dict[str, float]:
    """Tokens that were not generated again so far, by why their samples came back."""
    name = "stream_rl_resume_tokens_saved_total"
    return {cause: REGISTRY.get_sample_value(name, {"cause": cause}) or 0.0 for cause in CAUSES}


def added(after: dict, before: dict) -> dict:
    return {key: value - before[key] for key, value in after.items() if value != before[key]}


def saying(_given: list[int]) -> list[int]:
    return ids("4 <|im_end|>")


async def under_way(fleet: ScriptedFleet, requests: int) -> None:
    """Returns once so many requests have been sent altogether."""
    async with asyncio.timeout(10):
        while len(fleet.aborted) < requests:
            await asyncio.sleep(0.01)


async def committed(buffer: TrajectoryBuffer, turns: int) -> None:
    """Returns once so many complete turns are in the buffer."""
    async with asyncio.timeout(10):
        while (await buffer.snapshot()).committed_turns < turns:
            await asyncio.sleep(0.01)


async def gone_on_with(loaded, server, count: int) -> tuple[dict, dict]:
    """What is counted while another producer takes the samples up; it gets no answer from its engine."""
    before = resumed(), saved()
    fleet = ScriptedFleet(saying)
    fleet.limit = 0
    async with await TrajectoryBuffer.connect(server.url, loaded.config.name, timeout=5.0) as buffer:
        playing = asyncio.create_task(Producer(loaded, buffer, fleet, "q").run(asyncio.Event()))
        async with asyncio.timeout(10):
            while sum(added(resumed(), before[0]).values()) < count:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # none comes more than once
        playing.cancel()
        await asyncio.wait([playing])
    return added(resumed(), before[0]), added(saved(), before[1])


@pytest.mark.parametrize("kind", WAYS)
async def test_after_a_drain(unending, open_buffer, server, kind):
    """Each sample has one token of an open turn; where its environment starts again, it saves none."""
    loaded = unending(kind)
    buffer, fleet, stop = await open_buffer(loaded.config), ScriptedFleet(saying), asyncio.Event()
    fleet.hold.clear()
    await drained(Producer(loaded, buffer, fleet, "p"), fleet, stop)

    resumes, tokens = await gone_on_with(loaded, server, SAMPLES)

    assert resumes == {("released", kind): SAMPLES}
    assert tokens == ({} if kind == "restart" else {"released": SAMPLES})


async def test_after_a_kill(unending, open_buffer, server):
    """Its tasks just stop: every token of a committed turn is saved."""
    loaded = unending("snapshot")
    buffer, fleet = await open_buffer(loaded.config), ScriptedFleet(saying)
    fleet.limit = 3 * SAMPLES
    fleet.hold.clear()
    killed = asyncio.create_task(Producer(loaded, buffer, fleet, "p").run(asyncio.Event()))
    await under_way(fleet, SAMPLES)
    fleet.hold.set()
    await asyncio.wait_for(fleet.exhausted.wait(), 10)
    await committed(buffer, fleet.limit)
    killed.cancel()
    await asyncio.wait([killed], timeout=5)

    resumes, tokens = await gone_on_with(loaded, server, SAMPLES)

    assert resumes == {("expired", "snapshot"): SAMPLES}
    assert tokens == {"expired": 2 * fleet.limit}


async def test_an_abort_is_no_resume(unending, open_buffer):
    """The episode keeps what it has, and goes on by itself."""
    loaded = unending("snapshot")
    buffer, fleet, stop = await open_buffer(loaded.config), ScriptedFleet(saying), asyncio.Event()
    fleet.hold.clear()
    before = resumed(), saved()
    playing = asyncio.create_task(Producer(loaded, buffer, fleet, "p").run(stop))
    await under_way(fleet, SAMPLES)
    for rid in list(fleet.aborted):
        await fleet.abort(rid)
    await under_way(fleet, 2 * SAMPLES)
    fleet.hold.set()
    await committed(buffer, SAMPLES)
    stop.set()
    await asyncio.wait_for(playing, 5)

    assert added(resumed(), before[0]) == added(saved(), before[1]) == {}
    assert {tuple(given[-1:]) for given, _ in fleet.requests[SAMPLES : 2 * SAMPLES]} == {tuple(ids("4"))}
