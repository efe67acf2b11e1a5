"""Evaluation: held-out prompts in memory, and an end in time."""

from __future__ import annotations

import asyncio

import pytest
from rollouts import ScriptedEngines, halving

from stream_rl.errors import ConfigError, EngineUnavailable
from stream_rl.metrics.turn_log import read
from stream_rl.producer import evaluation
from stream_rl.producer.evaluation import evaluate, evaluate_rollout, pass_at
from stream_rl.sample import WeightVersion


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


async def test_only_a_pinned_engine_is_played_on_by_its_name(config, open_buffer, server):
    settings = config()
    await open_buffer(settings)

    with pytest.raises(EngineUnavailable, match="engine-0 is pinned no more"):
        await evaluate(settings, buffer_url=server.url, engine_id="engine-0")


async def test_what_a_pinned_version_reached_is_written_down(config, open_buffer, server, monkeypatch):
    settings = config(**{"evaluation.episodes": 6, "evaluation.samples": 3, "evaluation.pass_reward": 0.9})
    buffer = await open_buffer(settings)
    assert await buffer.pin_engine("engine-0", 60.0)
    chosen = []

    async def play(rollout, fleet, version=None):
        chosen.append((sorted(fleet._engines), version))
        return await evaluate_rollout(rollout, ScriptedEngines(halving), version)

    monkeypatch.setattr(evaluation, "evaluate_rollout", play)
    result = await evaluate(settings, buffer_url=server.url, engine_id="engine-0")

    assert chosen == [(["engine-0"], WeightVersion(0))]
    assert (result.episodes, result.mean_reward, result.pass_at_1, result.pass_at_k) == (6, 1.0, 1.0, 1.0)
    (line,) = read(settings.folder / "evaluations.jsonl")
    assert (line["step"], line["version"], line["samples"], line["mean_reward"]) == (0, "0", 3, 1.0)


async def test_the_tries_of_a_prompt_have_their_own_seeds(rollout):
    engines = ScriptedEngines(halving)
    loaded = rollout(**{"evaluation.episodes": 4, "evaluation.samples": 2})
    samples = await evaluate_rollout(loaded, engines)

    assert [(sample.group_index, sample.index) for sample in samples] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({sample.sampling_seed for sample in samples}) == 4
    first, second, other, _ = [(sample.prompt, sample.label, str(sample.metadata)) for sample in samples]
    assert first == second
    assert first != other


def test_pass_at_k_is_the_chance_of_a_draw_without_replacement():
    assert pass_at(1, [[True, False], [False, False]]) == 0.25
    assert pass_at(2, [[True, False, False], [True, True, False]]) == pytest.approx((2 / 3 + 1) / 2)
    assert pass_at(2, [[True], [False, False]]) == 0.0
    assert pass_at(2, [[True]]) is None


def test_episodes_are_whole_prompts(config):
    with pytest.raises(ConfigError, match="cannot be divided into samples=4"):
        config(**{"evaluation.episodes": 6, "evaluation.samples": 4})
