"""Publishing over fake engines: every engine's own result, and order after a death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from stream_rl.engine.client import EngineClient, SamplingParams, ServerInfo
from stream_rl.engine.ports import free_port
from stream_rl.engine.publish import GROUP, WeightPublisher
from stream_rl.sample import Int32, WeightVersion
from stream_rl.testing import FakeEngineServer, seeded

VERSION = WeightVersion(7, 1)
WEIGHTS = Path("/weights/7.1")


@pytest.fixture
async def engines() -> AsyncIterator[list[FakeEngineServer]]:
    """Two engines at version 0."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeEngineServer(seeded(0, 32), vocab_size=32)) for _ in range(2)]


@pytest.fixture
async def publisher() -> AsyncIterator[WeightPublisher]:
    """Gives an engine two seconds."""
    publisher = WeightPublisher(timeout=2.0)
    yield publisher
    await publisher.close()


def named(engines: list[FakeEngineServer]) -> list[tuple[str, str]]:
    """What the buffer would say of them."""
    return [(f"engine-{number}", engine.url) for number, engine in enumerate(engines)]


def paths(engine: FakeEngineServer) -> list[str]:
    """The control calls that an engine has seen."""
    return [path for path, _ in engine.calls]


async def test_every_engine_gets_the_version(engines: list[FakeEngineServer], publisher: WeightPublisher) -> None:
    updates = await publisher.publish(named(engines), VERSION, WEIGHTS)
    assert [(update.engine_id, update.ok) for update in updates] == [("engine-0", True), ("engine-1", True)]
    for engine in engines:
        assert engine.version == "7.1"
        assert not engine.paused
        assert paths(engine) == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
        assert engine.calls[0][1] == {"mode": "retract"}
        assert engine.calls[1][1] == {"model_path": str(WEIGHTS), "weight_version": "7.1", "flush_cache": True}


async def test_pause_and_transfer_are_told_apart(
    engines: list[FakeEngineServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    pause, update, publisher = EngineClient.pause, EngineClient.update_weights_from_disk, WeightPublisher(timeout=30.0)

    async def slow_pause(client: EngineClient, *arguments: Any, **options: Any) -> None:
        await asyncio.sleep(0.2)
        await pause(client, *arguments, **options)

    async def slow_update(client: EngineClient, *arguments: Any, **options: Any) -> None:
        await asyncio.sleep(0.1)
        await update(client, *arguments, **options)

    monkeypatch.setattr(EngineClient, "pause", slow_pause)
    monkeypatch.setattr(EngineClient, "update_weights_from_disk", slow_update)
    before = {part: observed(part) for part in ("publish", "pause", "transfer")}
    (update_of_one,) = await publisher.publish(named(engines)[1:], VERSION, WEIGHTS)
    await publisher.close()
    took = update_of_one.seconds
    assert 0.1 <= took["transfer"] <= took["pause"] - 0.2 <= took["update"] - 0.2
    for part, name in (("publish", "update"), ("pause", "pause"), ("transfer", "transfer")):
        assert observed(part) - before[part] == pytest.approx(took[name])


def observed(part: str) -> float:
    """Seconds of engine-1's updates so far."""
    return REGISTRY.get_sample_value(f"stream_rl_{part}_seconds_sum", {"engine": "engine-1"}) or 0.0


@pytest.mark.parametrize("fault", ["dead", "500", "hang"])
async def test_an_engine_that_fails_is_reported_and_the_others_go_on(
    engines: list[FakeEngineServer], publisher: WeightPublisher, fault: str
) -> None:
    places = named(engines)
    if fault == "dead":
        places[0] = ("engine-0", f"http://127.0.0.1:{free_port()}")
    else:
        engines[0].fail("/update_weights_from_disk", *([fault] * 3))  # type: ignore[list-item]
    broken, fine = await publisher.publish(places, VERSION, WEIGHTS)
    assert not broken.ok
    assert broken.error
    assert fine.ok
    assert engines[1].version == "7.1"
    assert [engine.paused for engine in engines] == [fault != "dead", False]


async def test_an_engine_that_says_another_version_has_failed(
    engines: list[FakeEngineServer], publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engines[0]._controls, "update_weights_from_disk", lambda _body: None)
    broken, fine = await publisher.publish(named(engines), VERSION, WEIGHTS)
    assert broken.error is not None
    assert "serves version 0 after an update to 7.1" in broken.error
    assert fine.ok
    assert engines[0].paused


async def test_requests_wait_through_an_update_and_finish(
    engines: list[FakeEngineServer], publisher: WeightPublisher, prompt: Int32
) -> None:
    async with EngineClient(engines[0].url, vocab_size=32) as client:
        running = asyncio.create_task(client.generate(prompt, SamplingParams(2000)))
        await engines[0].arrived(1)
        await publisher.publish(named(engines), VERSION, WEIGHTS)
        generation = await running
    assert generation.finish_reason == "length"
    assert generation.spans[-1].version == VERSION


async def test_in_place_keeps_the_cache_and_refuses_an_engine_whose_stamps_would_be_wrong(
    engines: list[FakeEngineServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    overlapping = ServerInfo("fake", None, 8, overlaps=True)
    ask = EngineClient.server_info

    async def server_info(client: EngineClient) -> ServerInfo:
        return overlapping if client.url == engines[0].url else await ask(client)

    monkeypatch.setattr(EngineClient, "server_info", server_info)
    publisher = WeightPublisher(timeout=5.0, pause_mode="in_place")
    refused, fine = await publisher.publish(named(engines), VERSION, WEIGHTS)
    await publisher.close()
    assert "--disable-overlap-schedule" in (refused.error or "")
    assert engines[0].version == "0"
    assert fine.ok
    assert engines[1].calls[0][1] == {"mode": "in_place"}
    assert engines[1].calls[1][1]["flush_cache"] is False


async def test_abort_gives_requests_back_half_done(engines: list[FakeEngineServer], prompt: Int32) -> None:
    publisher = WeightPublisher(timeout=5.0, pause_mode="abort")
    async with EngineClient(engines[0].url, vocab_size=32) as client:
        running = asyncio.create_task(client.generate(prompt, SamplingParams(4000)))
        await engines[0].arrived(1)
        await asyncio.sleep(0.01)
        await publisher.publish(named(engines), VERSION, WEIGHTS)
        cut = await running
        rest = await client.generate(np.concatenate([prompt, cut.tokens]), SamplingParams(4))
    await publisher.close()
    assert (cut.finish_reason, rest.spans[0].version) == ("abort", VERSION)
    assert 0 < len(cut.tokens) < 4000


async def test_what_a_dead_trainer_left_is_put_in_order(
    engines: list[FakeEngineServer], publisher: WeightPublisher, prompt: Int32
) -> None:
    async with EngineClient(engines[0].url, vocab_size=32) as client:
        await client.init_weights_group(
            GROUP, address="127.0.0.1", port=1, rank=1, world_size=2, backend="gloo", timeout=5.0
        )
        await client.pause()
        assert [update.ok for update in await publisher.recover(named(engines))] == [True, True]
        assert not engines[0].paused
        await client.generate(prompt, SamplingParams(1))


async def test_an_engine_left_in_the_middle_of_an_update_stays_paused_until_the_next(
    engines: list[FakeEngineServer], publisher: WeightPublisher
) -> None:
    async with EngineClient(engines[0].url, vocab_size=32) as client:
        await client.pause()
        await client.begin_weight_update()
        left, orderly = await publisher.recover(named(engines))
        assert left.error is not None
        assert "in the middle of an update" in left.error
        assert orderly.ok
        assert engines[0].paused
        left, _ = await publisher.recover(named(engines))
        assert left.error is not None
