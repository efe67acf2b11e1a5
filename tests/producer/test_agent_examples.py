"""The examples with loops and modules of users' own, played by a producer: real buffer, real HTTP, a fake engine."""

from __future__ import annotations

from collections import Counter

import pytest
from example_runs import one_step

from stream_rl.sample import StopReason

pytestmark = pytest.mark.usefixtures("in_the_checkout")


async def test_a_dataset_mixes_loops(example, open_buffer):
    samples = await one_step(example("mixed_agents", "rollout.groups_per_step=24", "data.shuffle=false"), open_buffer)

    names = Counter(sample.metadata["agent_name"] for sample in samples)
    assert names == {"multi_turn_env": 16, "single_turn_agent": 16, "second_thought": 16}
    for sample in samples:
        if sample.metadata["agent_name"] == "multi_turn_env":
            assert sample.stop_reason in (StopReason.ENV_DONE, StopReason.MAX_TURNS)
        else:
            turns = 1 if sample.metadata["agent_name"] == "single_turn_agent" else 2
            assert (sample.stop_reason, sample.next_turn) == (StopReason.MODEL_DONE, turns)
        said = sample.turns[-1].action
        if sample.stop_reason is StopReason.MODEL_DONE:
            assert sample.reward == float(said == str(sample.label))


async def test_a_rollout_function_plays_samples(example, open_buffer):
    samples = await one_step(example("rollout_function", "rollout.groups_per_step=8"), open_buffer)

    assert len(samples) == 16
    assert {sample.stop_reason for sample in samples} <= {StopReason.MODEL_DONE, StopReason.MAX_TURNS}
    assert any(sample.next_turn == 2 for sample in samples)
    assert all((sample.reward == 1.0) == (sample.turns[-1].action == str(sample.label)) for sample in samples)


@pytest.mark.parametrize("executor", ["threads", "processes"])
async def test_a_module_of_slimes_runs_with_its_custom_config(example, open_buffer, executor):
    alone = (f"environment.executor={executor}", "environment.executor_processes=1")
    config = example("slime_module", "rollout.groups_per_step=8", *alone)
    assert (config.rollout.max_turns, config.environment.path) == (4, "examples.slime_module.env_guess")
    assert config.environment.args == {"highest": 8}
    samples = await one_step(config, open_buffer)

    assert {sample.stop_reason for sample in samples} == {StopReason.ENV_DONE}
    assert {sample.label for sample in samples} == set(range(1, 9))
    for sample in samples:
        assert sample.reward == float(sample.turns[-1].action == str(sample.label))
        assert sample.next_turn == 4 or sample.reward == 1.0
