"""A whole run in a world that breaks all the time: it ends, no fault is scored, and little is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from faulty_env import Faults
from prometheus_client import REGISTRY
from rollouts import ID, halving
from test_worker import train

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.engine.fleet import Fleet
from stream_rl.models.tiny_text import WORDS
from stream_rl.producer.worker import Producer
from stream_rl.sample import WeightVersion
from stream_rl.testing import FakeEngineServer

STEPS, GROUPS, SIBLINGS = 4, 16, 8
RESTARTS = 4


class Engines:
    """Two engines that play well, each replaced now and then; `written` counts every token of them."""

    def __init__(self, buffer: TrajectoryBuffer) -> None:
        self.written = 0
        self._buffer = buffer
        self._running: dict[int, FakeEngineServer] = {}
        self._restarts = 0

    def source(self, prompt: Sequence[int]) -> Iterator[tuple[int, float]]:
        """Six tokens that say nothing, and the best guess."""
        for token in [ID["<pad>"]] * 6 + halving(list(prompt)):
            self.written += 1
            yield token, -0.5

    async def start(self, number: int) -> None:
        """An engine in the place of `number`, whether there was one or not."""
        if number in self._running:
            await self._running.pop(number).stop()
            await self._buffer.engine_left(f"engine-{number}")
        engine = self._running[number] = FakeEngineServer(self.source, vocab_size=len(WORDS))
        await engine.start()
        await self._buffer.engine_joined(f"engine-{number}", engine.url, 1)
        await self._buffer.engine_serving(f"engine-{number}", WeightVersion(0))

    async def restart_now_and_then(self, turns: int) -> None:
        """Kills an engine each time that so many turns were committed."""
        for number in range(1, RESTARTS + 1):
            while (await self._buffer.snapshot()).committed_turns < number * turns:
                await asyncio.sleep(0.02)
            await self.start(number % 2)
            self._restarts += 1

    async def stop(self) -> int:
        """How often one was killed."""
        for engine in self._running.values():
            await engine.stop()
        return self._restarts


def retried(cause: str) -> float:
    labels = {"environment": "faulty_env", "cause": cause, "outcome": "retried"}
    return REGISTRY.get_sample_value("stream_rl_env_retries_total", labels) or 0.0


@pytest.fixture
async def engines(rollout, open_buffer) -> AsyncIterator[tuple]:
    Faults.begin(5)
    loaded = rollout(**{
        "environment.path": "faulty_env", "environment.step_timeout": 0.25, "rollout.groups_per_step": GROUPS,
        "rollout.group_size": SIBLINGS, "trainer.steps": STEPS, "producer.concurrency": 24,
        "producer.lease_seconds": 1.0,
    })  # fmt: skip
    buffer = await open_buffer(loaded.config)
    engines = Engines(buffer)
    for number in (0, 1):
        await engines.start(number)
    yield loaded, buffer, engines
    Faults.release.set()


async def test_every_group_completes_and_the_worlds_faults_are_nobodys_reward(engines, monkeypatch):
    loaded, buffer, serving = engines
    monkeypatch.setattr("stream_rl.producer.retries.FIRST_PAUSE", 0.001)
    before = {cause: retried(cause) for cause in ("infra", "timeout")}
    fleet = Fleet(vocab_size=len(WORDS), timeout=10.0, pass_over=0.05, attempts=1)
    playing = asyncio.create_task(Producer(loaded, buffer, fleet, "p").run(asyncio.Event()))
    killing = asyncio.create_task(serving.restart_now_and_then(turns=250))

    samples = await asyncio.wait_for(train(buffer, STEPS), 60)
    await asyncio.wait_for(playing, 10)
    killing.cancel()
    restarts = await serving.stop()
    await fleet.close()

    snapshot = await buffer.snapshot()
    assert len(samples) == STEPS * GROUPS * SIBLINGS
    assert (snapshot.trained, snapshot.dead_lettered, snapshot.live) == (STEPS * GROUPS, 0, 0)
    assert {sample.reward for sample in samples} == {1.0}
    assert snapshot.refills >= Faults.met["fatal"] > 0
    assert retried("infra") - before["infra"] == Faults.met["infra"] > 20
    assert retried("timeout") - before["timeout"] == Faults.met["hang"] > 5
    assert restarts == RESTARTS
    kept = sum(int(sample.loss_mask.sum()) for sample in samples)
    assert 0 < serving.written - kept < 0.02 * serving.written
