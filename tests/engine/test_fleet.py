"""The fleet over fake engines: who gets a request, and what happens to it when its engine goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import ClientSession, web
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from stream_rl.engine.client import SamplingParams
from stream_rl.engine.fleet import SLACK, Fleet, choose
from stream_rl.engine.ports import free_port
from stream_rl.errors import EngineRejected, EngineUnavailable
from stream_rl.sample import Int32, WeightVersion
from stream_rl.testing import FakeEngineServer, seeded

VOCAB = 32
LOADS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 200), min_size=1)


@pytest.fixture
async def engines() -> AsyncIterator[list[FakeEngineServer]]:
    """Two engines."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB)) for _ in range(2)]


@pytest.fixture
async def fleet(engines: list[FakeEngineServer]) -> AsyncIterator[Fleet]:
    """A fleet that has been told of both."""
    fleet = Fleet(vocab_size=VOCAB, timeout=10.0, pass_over=0.05, attempts=1)
    await fleet.refresh(named(engines))
    yield fleet
    await fleet.close()


def named(engines: list[FakeEngineServer]) -> list[tuple[str, str]]:
    """What the buffer would say of them."""
    return [(f"engine-{number}", engine.url) for number, engine in enumerate(engines)]


@given(LOADS, st.sampled_from("abcd"))
def test_a_session_stays_unless_its_engine_is_gone_or_overloaded(loads: dict[str, int], current: str) -> None:
    chosen = choose(loads, current)
    least = min(loads.values())
    if current in loads and loads[current] <= 2 * least + SLACK:
        assert chosen == current
    else:
        assert loads[chosen] == least


@given(LOADS)
def test_a_new_session_goes_to_the_least_loaded(loads: dict[str, int]) -> None:
    assert loads[choose(loads, None)] == min(loads.values())


async def test_sessions_spread_and_stay(fleet: Fleet, engines: list[FakeEngineServer], prompt: Int32) -> None:
    for engine in engines:
        engine.pause()
    first = [asyncio.create_task(fleet.generate(f"s{n}", prompt, SamplingParams(1), rid=f"s{n}.0")) for n in range(8)]
    for engine in engines:
        await engine.arrived(4)
        engine.resume()
    await asyncio.gather(*first)
    homes = [{request["rid"].split(".")[0] for request in engine.requests} for engine in engines]
    assert [len(home) for home in homes] == [4, 4]
    for n in range(8):
        await fleet.generate(f"s{n}", prompt, SamplingParams(1), rid=f"s{n}.1")
    assert [{request["rid"].split(".")[0] for request in engine.requests} for engine in engines] == homes


async def test_a_dead_engines_requests_and_sessions_move(
    fleet: Fleet, engines: list[FakeEngineServer], prompt: Int32
) -> None:
    dying, living = engines
    dying.pause()
    waiting = asyncio.create_task(fleet.generate("s", prompt, SamplingParams(3)))
    await dying.arrived(1)
    await dying.stop()
    assert len((await waiting).tokens) == 3
    await fleet.generate("s", prompt, SamplingParams(3))
    assert len(living.requests) == 2


async def test_an_engine_that_comes_back_at_its_address_is_noticed_and_serves_again(
    engines: list[FakeEngineServer], prompt: Int32
) -> None:
    port = free_port()
    first = FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB, port=port)
    await first.start()
    fleet = Fleet(vocab_size=VOCAB, timeout=10.0, pass_over=0.05, attempts=1)
    await fleet.refresh([("engine-0", first.url), ("engine-1", engines[1].url)])
    await fleet.generate("s", prompt, SamplingParams(3))
    await first.stop()
    await fleet.generate("s", prompt, SamplingParams(3))
    assert (len(first.requests), len(engines[1].requests)) == (1, 1)
    async with FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB, port=port) as back:
        assert back.url == first.url
        async with asyncio.timeout(5):
            while not back.requests:  # a new session goes to the first of two idle engines, once it is asked again
                await fleet.generate(f"new {len(engines[1].requests)}", prompt, SamplingParams(3))
        await fleet.generate("s", prompt, SamplingParams(3))
        assert len(back.requests) == 1, "a session that moved stays where its prefix is now"
    await fleet.close()


async def test_a_request_outlives_its_only_engine_until_that_comes_back(prompt: Int32) -> None:
    port = free_port()
    fleet = Fleet(vocab_size=VOCAB, timeout=10.0, pass_over=0.05, attempts=1)
    async with FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB, port=port) as first:
        await fleet.refresh([("engine-0", first.url)])
        first.pause()
        waiting = asyncio.create_task(fleet.generate("s", prompt, SamplingParams(3)))
        await first.arrived(1)
    async with FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB, port=port) as back:
        assert len((await waiting).tokens) == 3
        assert len(back.requests) == 1
    await fleet.close()


async def test_an_engine_that_leaves_gives_up_its_requests(
    fleet: Fleet, engines: list[FakeEngineServer], prompt: Int32
) -> None:
    leaving, staying = engines
    leaving.pause()
    waiting = asyncio.create_task(fleet.generate("s", prompt, SamplingParams(3)))
    await leaving.arrived(1)
    await fleet.refresh(named(engines)[1:])
    assert fleet.engines == ("engine-1",)
    assert len((await waiting).tokens) == 3
    assert len(staying.requests) == 1


async def test_a_restarted_engine_is_another_address(engines: list[FakeEngineServer], prompt: Int32) -> None:
    fleet = Fleet(vocab_size=VOCAB, timeout=10.0, pass_over=0.05, attempts=1)
    await fleet.refresh([("engine-0", engines[0].url)])
    await fleet.generate("s", prompt, SamplingParams(1))
    await fleet.refresh([("engine-0", engines[1].url)])
    await fleet.generate("s", prompt, SamplingParams(1))
    assert [len(engine.requests) for engine in engines] == [1, 1]
    await fleet.close()


async def test_a_request_waits_for_an_engine(engines: list[FakeEngineServer], prompt: Int32) -> None:
    fleet = Fleet(vocab_size=VOCAB, timeout=10.0)
    waiting = asyncio.create_task(fleet.generate("s", prompt, SamplingParams(3)))
    await asyncio.sleep(0)
    await fleet.refresh(named(engines))
    assert len((await waiting).tokens) == 3
    await fleet.close()


async def test_no_engine_is_unavailable_at_the_deadline(prompt: Int32) -> None:
    fleet = Fleet(vocab_size=VOCAB, timeout=0.05)
    with pytest.raises(EngineUnavailable, match=r"no engine answered in 0\.05 s; 0 engines serve"):
        await fleet.generate("s", prompt, SamplingParams(3))


async def test_the_deadline_names_the_last_fault(prompt: Int32) -> None:
    fleet = Fleet(vocab_size=VOCAB, timeout=0.1, pass_over=0.01, attempts=1)
    await fleet.refresh([("engine-0", f"http://127.0.0.1:{free_port()}")])
    with pytest.raises(EngineUnavailable, match=r"the last fault: .*ClientConnectorError"):
        await fleet.generate("s", prompt, SamplingParams(3))
    await fleet.close()


async def test_a_refused_request_is_not_taken_elsewhere(
    fleet: Fleet, engines: list[FakeEngineServer], prompt: Int32
) -> None:
    with pytest.raises(EngineRejected):
        await fleet.generate("s", prompt, SamplingParams(5000))
    assert sum(len(engine.requests) for engine in engines) == 1


async def test_an_abort_finds_the_engine(fleet: Fleet, engines: list[FakeEngineServer], prompt: Int32) -> None:
    engines[0].pause()
    waiting = asyncio.create_task(fleet.generate("s", prompt, SamplingParams(3), rid="a"))
    await engines[0].arrived(1)
    await fleet.abort("b")
    await fleet.abort("a")
    assert (await waiting).finish_reason == "abort"


async def test_a_cancelled_request_is_not_sent_again(
    fleet: Fleet, engines: list[FakeEngineServer], prompt: Int32
) -> None:
    engines[0].pause()
    waiting = asyncio.create_task(fleet.generate("s", prompt, SamplingParams(3)))
    await engines[0].arrived(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not engines[1].requests


async def test_an_answer_stamped_older_than_was_confirmed_is_counted_and_said_once(
    engines: list[FakeEngineServer], prompt: Int32, caplog: pytest.LogCaptureFixture
) -> None:
    def counted() -> float:
        return REGISTRY.get_sample_value("stream_rl_version_mismatches_total", {"engine": "engine-0"}) or 0.0

    fleet, before = Fleet(vocab_size=VOCAB, timeout=5.0), counted()
    await fleet.refresh(named(engines)[:1], {"engine-0": WeightVersion(0)})
    await fleet.generate("s", prompt, SamplingParams(1))
    assert counted() == before
    await fleet.refresh(named(engines)[:1], {"engine-0": WeightVersion(1)})
    for _ in range(2):
        await fleet.generate("s", prompt, SamplingParams(1))
    assert counted() == before + 2
    assert caplog.messages == ["engine-0 confirmed version 1 and then wrote tokens as version 0"]
    await fleet.close()


async def test_behind_a_router_aborts_still_reach_the_engine(engines: list[FakeEngineServer], prompt: Int32) -> None:
    async with router_before(engines[1]) as url:
        fleet = Fleet(vocab_size=VOCAB, timeout=5.0, router=url)
        await fleet.refresh(named(engines))
        assert (await fleet.generate("s", prompt, SamplingParams(3), extra_key="k")).finish_reason == "length"
        assert engines[1].requests[0]["extra_key"] == "k"
        running = asyncio.create_task(fleet.generate("s", prompt, SamplingParams(4000), rid="a"))
        await engines[1].arrived(2)
        await fleet.abort("a")
        assert (await running).finish_reason == "abort"
        assert [path for path, _ in engines[0].calls] == ["/abort_request"]
        await fleet.refresh([])
        assert not fleet.engines
        await fleet.close()


@asynccontextmanager
async def router_before(engine: FakeEngineServer) -> AsyncIterator[str]:
    """An sglang-router as the fleet sees one: it forwards /generate, and knows nothing else."""

    async def forward(request: web.Request) -> web.Response:
        async with ClientSession() as session, session.post(f"{engine.url}/generate", data=await request.read()) as it:
            return web.Response(body=await it.read(), status=it.status, content_type="application/json")

    app = web.Application()
    app.router.add_post("/generate", forward)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
