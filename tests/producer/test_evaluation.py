"""Evaluation: held-out prompts in memory, and an end in time."""

from __future__ import annotations

import asyncio

import pytest
from rollouts import ScriptedEngines, halving

from stream_rl.errors import EngineUnavailable
from stream_rl.producer.evaluation import evaluate, evaluate_rollout


async def test_every_episode_is_played_at_the_evaluations_temperature(rollout):
    engines = ScriptedEngines(halving)
    loaded = rollout(**{"evaluation.episodes": 12, "evaluation.temperature": 0.0})
    samples = await evaluate_rollout(loaded, engines)

    assert [sample.reward for sample in samples] == [1.0] * 12
    assert {sampling.temperature for _, sampling in engines.requests} == {0.0}


async def test_at_the_deadline_it_ends_with_the_episodes_it_has(rollout):
    class Stuck(ScriptedEngines):
        async def generate(self, session_id, *given, **named):
            if session_id.startswith("evaluation-1."):
                await asyncio.sleep(3600)
            return await super().generate(session_id, *given, **named)

    samples = await evaluate_rollout(rollout(**{"evaluation.episodes": 4, "evaluation.deadline": 0.3}), Stuck(halving))

    assert len(samples) == 3


async def test_without_an_engine_it_says_so(config, open_buffer, server):
    settings = config()
    buffer = await open_buffer(settings)
    await buffer.engine_left("engine-0")

    with pytest.raises(EngineUnavailable, match="needs an engine that serves"):
        await evaluate(settings, buffer_url=server.url)
