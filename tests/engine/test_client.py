"""The client against a fake engine: faults, deadlines, names."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from stream_rl.engine.client import EngineClient, SamplingParams, ServerInfo, TensorSpec
from stream_rl.engine.ports import free_port
from stream_rl.engine.transport import pause_before
from stream_rl.errors import EngineError, EngineRejected, EngineUnavailable
from stream_rl.sample import Int32, WeightVersion
from stream_rl.testing import FakeEngineServer, Fault, seeded


def retries(cause: str) -> float:
    """The counter's value."""
    return REGISTRY.get_sample_value("stream_rl_engine_request_retries_total", {"cause": cause}) or 0.0


async def test_a_cut_generation_goes_on_as_if_uncut(client: EngineClient, prompt: Int32) -> None:
    whole = await client.generate(prompt, SamplingParams(10))
    first = await client.generate(prompt, SamplingParams(4))
    rest = await client.generate(np.concatenate([prompt, first.tokens]), SamplingParams(6))
    assert np.array_equal(whole.tokens, np.concatenate([first.tokens, rest.tokens]))
    assert whole.finish_reason == "length"


@pytest.mark.parametrize(("fault", "cause"), [("drop", "connection"), ("500", "server")])
async def test_a_fault_is_retried_and_counted(
    client: EngineClient, engine: FakeEngineServer, prompt: Int32, fault: Fault, cause: str
) -> None:
    before = retries(cause)
    engine.fail("/generate", fault, fault)
    generation = await client.generate(prompt, SamplingParams(4))
    assert len(generation.tokens) == 4
    assert retries(cause) == before + 2


async def test_each_attempt_has_its_own_name(client: EngineClient, engine: FakeEngineServer, prompt: Int32) -> None:
    engine.fail("/generate", "500")
    await client.generate(prompt, SamplingParams(1), rid="a")
    await client.generate(prompt, SamplingParams(1), rid="a")
    assert [request["rid"] for request in engine.requests] == ["a.1/", "a.0/"]


async def test_a_refusal_is_not_retried(client: EngineClient, engine: FakeEngineServer, prompt: Int32) -> None:
    with pytest.raises(EngineRejected, match="5009 tokens requested"):
        await client.generate(prompt, SamplingParams(5000))
    assert len(engine.requests) == 1


async def test_ids_that_would_kill_the_server_are_never_sent(client: EngineClient, engine: FakeEngineServer) -> None:
    with pytest.raises(EngineRejected, match="token 32 at 1"):
        await client.generate(np.array([3, 32], np.int32), SamplingParams(1))
    assert not engine.requests


async def test_a_server_that_hangs_is_unavailable_at_the_deadline(
    client: EngineClient, engine: FakeEngineServer, prompt: Int32
) -> None:
    engine.fail("/generate", "hang")
    with pytest.raises(EngineUnavailable, match=r"no answer in 0\.05 s"):
        await client.generate(prompt, SamplingParams(1), timeout=0.05)


async def test_a_server_that_is_not_there_is_unavailable_after_the_attempts(prompt: Int32) -> None:
    async with EngineClient(f"http://127.0.0.1:{free_port()}", vocab_size=32, attempts=2) as client:
        with pytest.raises(EngineUnavailable, match="ClientConnectorError"):
            await client.generate(prompt, SamplingParams(1))
        assert not await client.ready()


async def test_an_abort_returns_what_there_is(client: EngineClient, engine: FakeEngineServer, prompt: Int32) -> None:
    running = asyncio.create_task(client.generate(prompt, SamplingParams(4000), rid="a"))
    other = asyncio.create_task(client.generate(prompt, SamplingParams(1000), rid="ab"))
    await engine.arrived(2)
    await client.abort("a")
    generation = await running
    assert generation.finish_reason == "abort"
    assert 0 < len(generation.tokens) == len(generation.log_probs) < 4000
    assert (await other).finish_reason == "length"


async def test_an_abort_in_the_queue_returns_nothing(prompt: Int32) -> None:
    async with (
        FakeEngineServer(seeded(0, 32), vocab_size=32, max_running=1) as engine,
        EngineClient(engine.url, vocab_size=32) as client,
    ):
        await client.pause()
        waiting = [asyncio.create_task(client.generate(prompt, SamplingParams(4), rid=name)) for name in ("a", "b")]
        await engine.arrived(2)
        await asyncio.gather(client.abort("a"), client.abort("b"))
        for generation in await asyncio.gather(*waiting):
            assert (generation.finish_reason, len(generation.tokens)) == ("abort", 0)


async def test_an_abort_of_a_finished_request_does_nothing(client: EngineClient, engine: FakeEngineServer) -> None:
    await client.abort("never")
    assert not engine.calls


async def test_one_name_is_one_request(client: EngineClient, engine: FakeEngineServer, prompt: Int32) -> None:
    await client.pause()
    first = asyncio.create_task(client.generate(prompt, SamplingParams(1), rid="a"))
    await engine.arrived(1)
    with pytest.raises(EngineRejected, match="'a' is running already"):
        await client.generate(prompt, SamplingParams(1), rid="a")
    await client.continue_()
    await first


async def test_an_update_inside_a_request_is_two_spans(
    client: EngineClient, engine: FakeEngineServer, prompt: Int32
) -> None:
    running = asyncio.create_task(client.generate(prompt, SamplingParams(2000)))
    await engine.arrived(1)
    await client.pause("retract")
    assert not await client.ready()
    await client.update_weights_from_disk("/weights", WeightVersion(1))
    await client.continue_()
    generation = await running
    assert [span.version for span in generation.spans] == [WeightVersion(0), WeightVersion(1)]
    assert await client.weight_version() == WeightVersion(1)


async def test_the_distributed_update_is_a_bracket(client: EngineClient) -> None:
    tensor = TensorSpec("lm_head.weight", (32, 64), "float32")
    join = {"address": "127.0.0.1", "port": 1, "rank": 1, "world_size": 2, "backend": "gloo", "timeout": 5.0}
    await client.init_weights_group("g", **join)  # type: ignore[arg-type]
    with pytest.raises(EngineRejected, match="no weight-update session"):
        await client.update_weights_from_distributed("g", [tensor], version=WeightVersion(2), timeout=5.0)
    await client.begin_weight_update()
    with pytest.raises(EngineRejected, match="already open"):
        await client.begin_weight_update()
    await client.update_weights_from_distributed("g", [tensor], version=None, timeout=5.0)
    assert await client.weight_version() == WeightVersion(0)
    await client.update_weights_from_distributed("g", [tensor], version=WeightVersion(2), timeout=5.0)
    await client.end_weight_update()
    assert await client.weight_version() == WeightVersion(2)
    await client.destroy_weights_group("g")
    with pytest.raises(EngineRejected):
        await client.destroy_weights_group("g")


async def test_a_call_that_must_not_be_repeated_is_not(client: EngineClient, engine: FakeEngineServer) -> None:
    engine.fail("/begin_weight_update", "500")
    with pytest.raises(EngineUnavailable, match="500 fault"):
        await client.begin_weight_update()
    await client.begin_weight_update()


async def test_versions_that_are_none_of_ours(prompt: Int32) -> None:
    async with (
        FakeEngineServer(seeded(0, 32), vocab_size=32, version="default") as engine,
        EngineClient(engine.url, vocab_size=32) as client,
    ):
        assert await client.weight_version() is None
        with pytest.raises(EngineUnavailable, match="publish one first"):
            await client.generate(prompt, SamplingParams(1))
        await client.probe()
    async with (
        FakeEngineServer(seeded(0, 32), vocab_size=32, version="v9-final") as engine,
        EngineClient(engine.url, vocab_size=32) as client,
    ):
        with pytest.raises(EngineError, match="another program"):
            await client.weight_version()


async def test_what_answers_but_is_no_engine_is_told(prompt: Int32, monkeypatch: pytest.MonkeyPatch) -> None:
    async def page(_server: FakeEngineServer, _request: web.Request) -> web.Response:
        return web.Response(text="<html>back soon</html>", content_type="text/html")

    monkeypatch.setattr(FakeEngineServer, "_model_info", page)
    monkeypatch.setattr(FakeEngineServer, "_generate", page)
    async with (
        FakeEngineServer(seeded(0, 32), vocab_size=32) as engine,
        EngineClient(engine.url, vocab_size=32) as client,
    ):
        with pytest.raises(EngineError, match="another program"):
            await client.weight_version()
        with pytest.raises(EngineUnavailable, match="no engine"):
            await client.generate(prompt, SamplingParams(1))


async def test_the_server_says_what_it_was_started_with(client: EngineClient) -> None:
    assert await client.server_info() == ServerInfo("fake", 4096, 128)


async def test_a_probe_finds_a_scheduler_that_is_stuck(client: EngineClient, engine: FakeEngineServer) -> None:
    await client.probe()
    engine.fail("/generate", "hang")
    assert await client.ready()
    with pytest.raises(EngineUnavailable):
        await client.probe(timeout=0.05)


def test_pauses_double_up_to_a_second() -> None:
    assert [pause_before(attempt) for attempt in range(2, 9)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
