"""Real SGLang: weights arrive both ways, and its log-probs are the trainer's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from stream_rl.config import ModelConfig
from stream_rl.consumer.batching import flatten
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.micro_batch import micro_batches
from stream_rl.consumer.model import Policy
from stream_rl.consumer.probe import Probe
from stream_rl.consumer.sender import GroupSender
from stream_rl.consumer.weights import WeightFolders, gather
from stream_rl.engine.client import EngineClient
from stream_rl.engine.generation import SamplingParams
from stream_rl.engine.publish import EngineUpdate, WeightPublisher
from stream_rl.engine.publish_group import GroupPublisher, checkpoint_shapes
from stream_rl.engine.server import EngineServer
from stream_rl.sample import Group, Sample, Turn, WeightVersion

CPU = torch.device("cpu")
pytestmark = [pytest.mark.usefixtures("one_rank"), pytest.mark.timeout(600)]


@pytest.fixture
def moved_policy(tiny_model: Path) -> Policy:
    """The tiny model with other weights than the engine was started with."""
    policy = load_policy(ModelConfig(path=str(tiny_model)), CPU)
    with torch.no_grad():
        for number, parameter in enumerate(policy.parameters()):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.to_local().add_(0.05 * noise)  # type: ignore[attr-defined]
    return policy


def largest_difference(policy: Policy, url: str, version: WeightVersion) -> float:
    """Lets the engine write 32 tokens at temperature 0.7; the largest |engine - trainer| log-prob."""
    prompt = np.array([3, 7, 20, 11, 5], np.int32)

    async def generate() -> Turn:
        async with EngineClient(url, vocab_size=32) as client:
            answer = await client.generate(
                prompt, SamplingParams(max_new_tokens=32, temperature=0.7, stop_token_ids=(), sampling_seed=1)
            )
        return Turn(0, answer.tokens, answer.log_probs, np.zeros(0, np.int32), answer.spans)

    sample = Sample(0, 0, "prompt", prompt, temperature=0.7, reward=1.0)
    sample.append(asyncio.run(generate()))
    assert {span.version for span in sample.weight_versions} == {version}
    samples = flatten([Group(0, version.step, [sample])], trainer_version=version.step, max_staleness=0)
    (batch,) = micro_batches(samples, np.zeros(len(samples.tokens), np.float32), [np.array([0])], packed=policy.packed)
    with torch.no_grad():
        log_probs, _ = policy(batch)
    assert len(log_probs) == sample.response_length > 0
    return float((log_probs - batch.rollout_log_probs).abs().max())


def probed(probe: Probe, url: str, key: str) -> float:
    """What the engine says of the probe."""

    async def ask() -> float:
        async with EngineClient(url, vocab_size=32) as client:
            return await client.log_prob(probe.tokens, extra_key=key)

    return asyncio.run(ask())


def test_weights_from_disk_give_equal_log_probs(
    sglang: EngineServer, moved_policy: Policy, tmp_path: Path, tiny_model: Path
) -> None:
    folders = WeightFolders(tmp_path, moved_policy, torch.float32, str(tiny_model))
    version = WeightVersion(71, 1)
    folders.write(version)

    async def publish() -> list[EngineUpdate]:
        publisher = WeightPublisher()
        updates = await publisher.publish([("engine-0", sglang.url)], version, folders.path(version))
        await publisher.close()
        return updates

    probe = Probe(moved_policy, CPU, "float32")
    before = abs(probed(probe, sglang.url, "before") - probe.log_prob())
    assert [update.error for update in asyncio.run(publish())] == [None]
    assert largest_difference(moved_policy, sglang.url, version) < 1e-4
    assert abs(probed(probe, sglang.url, "after") - probe.log_prob()) < 1e-4 < before


def test_weights_through_a_group_give_equal_log_probs(
    sglang: EngineServer, moved_policy: Policy, tiny_model: Path
) -> None:
    sender = GroupSender(CPU, address="127.0.0.1", timeout=60.0)
    sender.set_weights(gather(moved_policy, torch.float32))
    version = WeightVersion(72, 2)

    async def publish() -> list[list[EngineUpdate]]:
        publisher = WeightPublisher()
        group = GroupPublisher(publisher, sender, checkpoint_shapes(tiny_model), "float32")
        engines = [("engine-0", sglang.url)]
        twice = [await group.publish(engines, WeightVersion(72)), await group.publish(engines, version)]
        await group.close()
        await publisher.close()
        return twice

    assert [update.error for updates in asyncio.run(publish()) for update in updates] == [None, None]
    assert largest_difference(moved_policy, sglang.url, version) < 1e-4
