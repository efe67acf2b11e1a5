"""A real sglang-router before engines of which one dies: what was generated goes on, and is what it would have been."""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import numpy as np
import pytest

from stream_rl.engine.fleet import Fleet
from stream_rl.engine.generation import SamplingParams
from stream_rl.testing import FakeEngineServer, Latency, seeded

pytest.importorskip("sglang_router")

VOCAB, TOKENS = 50, 60
START = """
import sys
from sglang_router.router import Router
from sglang_router.router_args import RouterArgs
port, metrics, *urls = sys.argv[1:]
Router.from_args(RouterArgs(
    host="127.0.0.1", port=int(port), prometheus_port=int(metrics), worker_urls=urls, policy="round_robin",
    log_level="error", health_check_interval_secs=1, health_check_timeout_secs=1, health_failure_threshold=1,
)).start()
"""


@asynccontextmanager
async def router_before(*urls: str) -> AsyncIterator[str]:
    """The address of a router that has found these engines."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, metrics = one.getsockname()[1], other.getsockname()[1]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", START, str(port), str(metrics), *urls)
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession(url) as session, asyncio.timeout(100):
            while await _healthy(session) < len(urls):
                assert process.returncode is None, "the router did not start"
                await asyncio.sleep(0.1)
        yield url
    finally:
        process.kill()
        await process.wait()


async def _healthy(session: aiohttp.ClientSession) -> int:
    try:
        async with session.get("/readiness") as answer:
            return int((await answer.json())["healthy_workers"]) if answer.ok else 0
    except aiohttp.ClientError:
        return 0


def expected(prompt: np.ndarray) -> list[int]:
    return [token for token, _ in itertools.islice(seeded(7, VOCAB)(prompt.tolist()), TOKENS)]


async def test_requests_go_on_when_an_engine_behind_the_router_dies_and_are_as_if_it_had_not() -> None:
    engines = [FakeEngineServer(seeded(7, VOCAB), vocab_size=VOCAB, latency=Latency(token=0.02)) for _ in range(2)]
    prompts = [np.array([number, 1, 2, 3], np.int32) for number in range(8)]
    async with AsyncExitStack() as stack:
        for engine in engines:
            await engine.start()
        stack.push_async_callback(engines[0].stop)
        url = await stack.enter_async_context(router_before(*(engine.url for engine in engines)))
        fleet = Fleet(vocab_size=VOCAB, timeout=60.0, router=url)
        stack.push_async_callback(fleet.close)
        await fleet.refresh([(f"engine-{n}", engine.url) for n, engine in enumerate(engines)])
        asked = [
            asyncio.create_task(fleet.generate(f"s{n}", prompt, SamplingParams(TOKENS, sampling_seed=n), rid=f"s{n}/0"))
            for n, prompt in enumerate(prompts)
        ]
        async with asyncio.timeout(30):
            while not all(engine._running >= 2 for engine in engines):
                await asyncio.sleep(0.01)
        held = len(engines[1].requests)
        await engines[1].stop()
        await fleet.refresh([("engine-0", engines[0].url)])
        answers = await asyncio.gather(*asked)
        assert held >= 2
        assert len(engines[0].requests) >= len(prompts), "it answered for both"
        assert [answer.tokens.tolist() for answer in answers] == [expected(prompt) for prompt in prompts]
