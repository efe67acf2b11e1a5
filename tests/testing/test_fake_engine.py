"""The fake engine itself, by plain HTTP: users lean on it, so its claims are tested."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from stream_rl.testing import FakeEngineServer, Fault, Latency, scripted, seeded

VOCAB = 32


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """Plain HTTP."""
    async with aiohttp.ClientSession() as session:
        yield session


async def generate(
    http: aiohttp.ClientSession, engine: FakeEngineServer, *, count: int = 4, rid: str | None = None, **sampling: Any
) -> dict[str, Any]:
    """One request of three ids; the decoded answer."""
    body = {"input_ids": [1, 2, 3], "rid": rid, "sampling_params": {"max_new_tokens": count, **sampling}}
    async with http.post(engine.url + "/generate", json=body) as answer:
        return {"status": answer.status, **await answer.json()}


async def post(http: aiohttp.ClientSession, engine: FakeEngineServer, path: str, **body: Any) -> int:
    """A control call; its status."""
    async with http.post(engine.url + path, json=body) as answer:
        return answer.status


class Clock:
    """Time that passes only by being slept; `slept` has every sleep of the engine."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


async def test_replies_come_in_turn_and_end_with_stop(http: aiohttp.ClientSession) -> None:
    async with FakeEngineServer(scripted([7, 4], [8, 9, 4]), vocab_size=VOCAB) as engine:
        answers = [await generate(http, engine, count=8) for _ in range(3)]
    assert [answer["output_ids"] for answer in answers] == [[7, 4], [8, 9, 4], [7, 4]]
    meta = answers[0]["meta_info"]
    assert meta["finish_reason"] == {"type": "stop"}
    assert meta["output_token_logprobs"] == [[-0.5, 7, None], [-0.5, 4, None]]
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": 2}]


async def test_stop_tokens_and_length_end_a_request(http: aiohttp.ClientSession) -> None:
    async with FakeEngineServer(scripted([5, 6, 7, 8]), vocab_size=VOCAB, eos=7) as engine:
        by_eos = await generate(http, engine, count=8)
        by_stop = await generate(http, engine, count=8, stop_token_ids=[6])
        by_length = await generate(http, engine, count=1)
    assert (by_eos["output_ids"], by_eos["meta_info"]["finish_reason"]["type"]) == ([5, 6, 7], "stop")
    assert (by_stop["output_ids"], by_stop["meta_info"]["finish_reason"]["type"]) == ([5, 6], "stop")
    assert (by_length["output_ids"], by_length["meta_info"]["finish_reason"]["type"]) == ([5], "length")


@pytest.mark.parametrize(("room", "status"), [(13, 200), (12, 400)])
async def test_images_are_counted_as_what_they_are_to_the_model(
    http: aiohttp.ClientSession, room: int, status: int
) -> None:
    async with FakeEngineServer(scripted([7, 4]), vocab_size=VOCAB, context_length=room, features=len) as engine:
        body = {"input_ids": [1, 9, 2, 9], "image_data": ["abc", "abcde"], "sampling_params": {"max_new_tokens": 3}}
        async with http.post(engine.url + "/generate", json=body) as answered:
            answer = await answered.json()
    assert answered.status == status
    if status == 200:
        assert answer["meta_info"]["prompt_tokens"] == 2 + 3 + 5


@pytest.mark.parametrize("mode", ["retract", "in_place", "abort"])
async def test_arrivals_wait_in_every_pause(http: aiohttp.ClientSession, mode: str) -> None:
    async with FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB) as engine:
        await post(http, engine, "/pause_generation", mode=mode)
        async with http.get(engine.url + "/ready") as answer:
            assert answer.status == 503
        waiting = asyncio.create_task(generate(http, engine))
        await engine.arrived(1)
        assert not waiting.done()
        await post(http, engine, "/continue_generation")
        assert len((await waiting)["output_ids"]) == 4


async def test_a_pause_by_abort_ends_what_runs(http: aiohttp.ClientSession) -> None:
    async with FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB) as engine:
        running = asyncio.create_task(generate(http, engine, count=4000))
        await engine.arrived(1)
        await post(http, engine, "/pause_generation", mode="abort")
        answer = await running
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert len(answer["output_ids"]) == len(answer["meta_info"]["output_token_logprobs"]) < 4000


async def test_an_abort_in_the_queue_has_no_prompt_tokens(http: aiohttp.ClientSession) -> None:
    async with FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB) as engine:
        engine.pause()
        waiting = asyncio.create_task(generate(http, engine, rid="a/"))
        await engine.arrived(1)
        await post(http, engine, "/abort_request", rid="a")
        answer = await waiting
    assert answer["output_ids"] == []
    assert "prompt_tokens" not in answer["meta_info"]


async def test_the_queue_is_as_long_as_what_does_not_run(http: aiohttp.ClientSession) -> None:
    clock = Clock()
    latency = Latency(prefill=1.0, token=0.5, capacity=1.0)
    server = FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB, max_running=2, latency=latency, sleep=clock.sleep)
    async with server as engine:
        engine.pause()
        waiting = [asyncio.create_task(generate(http, engine, count=1)) for _ in range(3)]
        await engine.arrived(3)
        engine.resume()
        await asyncio.gather(*waiting)
    # Two share the capacity of one token a second; whoever ends up alone has it whole.
    assert clock.slept.count(1.0) >= 3
    assert max(clock.slept) == 2.0


def test_without_capacity_requests_do_not_slow_each_other() -> None:
    assert Latency(token=0.5).of_token(100) == 0.5
    assert Latency(token=0.5, capacity=10.0).of_token(1) == 0.5
    assert Latency(token=0.5, capacity=10.0).of_token(100) == 10.0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": 10}}, "11 tokens requested, the context has 10"),
        ({"input_ids": [], "sampling_params": {"max_new_tokens": 1}}, "input_ids cannot be empty"),
    ],
)
async def test_wrong_requests_are_refused(http: aiohttp.ClientSession, body: dict[str, Any], message: str) -> None:
    async with (
        FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB, context_length=10) as engine,
        http.post(engine.url + "/generate", json=body) as answer,
    ):
        assert answer.status == 400
        assert (await answer.json())["error"]["message"] == message


async def test_one_name_is_one_request(http: aiohttp.ClientSession) -> None:
    async with FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB) as engine:
        engine.pause()
        first = asyncio.create_task(generate(http, engine, rid="a"))
        await engine.arrived(1)
        assert (await generate(http, engine, rid="a"))["status"] == 400
        engine.resume()
        assert (await first)["status"] == 200
        assert (await generate(http, engine, rid="a"))["status"] == 200


async def test_an_id_outside_the_vocabulary_kills_it(http: aiohttp.ClientSession) -> None:
    async with FakeEngineServer(seeded(0, VOCAB), vocab_size=2) as engine:
        await generate(http, engine)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await generate(http, engine)


@pytest.mark.parametrize("fault", ["drop", "500", "hang"])
async def test_faults_meet_the_next_calls_one_each(http: aiohttp.ClientSession, fault: Fault) -> None:
    async with FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB) as engine:
        engine.fail("/generate", fault)
        if fault == "500":
            assert (await generate(http, engine))["status"] == 500
        else:
            with pytest.raises((aiohttp.ServerDisconnectedError, TimeoutError)):
                await asyncio.wait_for(generate(http, engine), 0.1)
        assert (await generate(http, engine))["status"] == 200


async def test_unknown_endpoints_are_404(http: aiohttp.ClientSession) -> None:
    async with FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB) as engine:
        assert await post(http, engine, "/get_weight_version") == 404


async def test_a_stopped_engine_cuts_its_requests(http: aiohttp.ClientSession) -> None:
    engine = FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB)
    await engine.start()
    engine.pause()
    waiting = asyncio.create_task(generate(http, engine))
    await engine.arrived(1)
    await engine.stop()
    with pytest.raises(aiohttp.ClientConnectionError):
        await waiting


def test_importing_it_is_cheap() -> None:
    code = "import sys, stream_rl.testing; print(sorted({'torch', 'sglang', 'transformers'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert output.stdout == "[]\n"
