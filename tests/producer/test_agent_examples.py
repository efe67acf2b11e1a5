"""The examples with loops and modules of users' own, played by a producer: real buffer, real HTTP, a fake engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from rollouts import END, ID

from stream_rl.buffer import TrajectoryBuffer, Waiting
from stream_rl.config import Config
from stream_rl.engine.fleet import Fleet
from stream_rl.models.tiny_text import WORDS
from stream_rl.producer.loading import check_rollout, load_rollout
from stream_rl.producer.worker import Producer
from stream_rl.sample import Sample, StopReason, WeightVersion
from stream_rl.testing import FakeEngineServer, scripted

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("in_the_checkout")


@pytest.fixture
def example(tiny_model: Path, tmp_path: Path):
    """`example("mixed_agents", "rollout.groups_per_step=2")`: its settings, for the tests' model, of one step."""

    def load(name: str, *overrides: str) -> Config:
        mine = [f"run={tmp_path / name}", f"model.path={tiny_model}", "trainer.steps=1", "rollout.group_size=2"]
        mine.append("producer.lease_seconds=0.3")  # the end of the run is heard with a heartbeat
        return Config.load(ROOT / "examples" / f"{name}.yaml", [*mine, *overrides])

    return load


async def one_step(config: Config, open_buffer) -> list[Sample]:
    """The samples of one step that a producer plays; the engine guesses every number in turn."""
    await check_rollout(config)
    buffer: TrajectoryBuffer = await open_buffer(config)
    claim, fleet = await buffer.claim_trainer(), Fleet(vocab_size=len(WORDS), timeout=5.0)
    loaded = load_rollout(config)
    guesses = scripted(*([ID[str(number)], END] for number in range(1, 9)))
    async with FakeEngineServer(guesses, vocab_size=len(WORDS), eos=END) as engine:
        await buffer.engine_joined("engine-0", engine.url, 1)
        await buffer.engine_serving("engine-0", WeightVersion(0))
        playing = asyncio.create_task(Producer(loaded, buffer, fleet, "p").run(asyncio.Event()))
        try:
            async with asyncio.timeout(30):
                while isinstance(entry := await buffer.take_step(claim, 1), Waiting):
                    if playing.done():
                        playing.result()
                    await asyncio.sleep(0.01)
        finally:
            await buffer.finish_run()
            await asyncio.wait_for(playing, 10)
            await fleet.close()
            loaded.close()
    samples = [sample for group in await buffer.load_groups(entry.groups) for sample in group.samples]
    for sample in samples:
        sample.check()
    return samples


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
