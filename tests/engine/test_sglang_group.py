"""The real server and a real gloo group: the weights arrive, and a trainer's death in the middle is survived."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stream_rl.consumer.sender import GroupSender
from stream_rl.engine.client import EngineClient, SamplingParams
from stream_rl.engine.publish import WeightPublisher
from stream_rl.engine.publish_group import GroupPublisher, checkpoint_shapes
from stream_rl.engine.server import EngineServer
from stream_rl.models.tiny_text import make_tiny_text
from stream_rl.sample import Int32, WeightVersion

# A trainer that joins the engine's group, opens the update, and dies in its first broadcast.
DYING_TRAINER = """
import asyncio, os, sys
from pathlib import Path
import torch
from safetensors.torch import load_file
from stream_rl.consumer.sender import GroupSender
from stream_rl.engine.publish import WeightPublisher
from stream_rl.engine.publish_group import GroupPublisher, checkpoint_shapes
from stream_rl.sample import WeightVersion

class Dying(GroupSender):
    def broadcast(self, start, end):
        os._exit(9)

url, folder = sys.argv[1], Path(sys.argv[2])
sender = Dying(torch.device("cpu"), address="127.0.0.1", timeout=20.0)
sender.set_weights(load_file(folder / "model.safetensors"))
group = GroupPublisher(WeightPublisher(timeout=20.0), sender, checkpoint_shapes(folder), "float32")
asyncio.run(group.publish([("engine-0", url)], WeightVersion(200)))
"""


@pytest.fixture
async def publisher() -> AsyncIterator[WeightPublisher]:
    """Publishes to the real server."""
    publisher = WeightPublisher(timeout=30.0)
    yield publisher
    await publisher.close()


@pytest.fixture
def left_by_a_dead_trainer(sglang: EngineServer, tiny_model: Path) -> EngineServer:
    """The real server, paused in an open update, in a group whose other member is gone."""
    command = [sys.executable, "-c", DYING_TRAINER, sglang.url, str(tiny_model)]
    died = subprocess.run(command, timeout=120, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert died.returncode == 9
    return sglang


async def test_a_trainers_death_in_an_update_is_survived_and_the_next_one_publishes(
    left_by_a_dead_trainer: EngineServer,
    publisher: WeightPublisher,
    tiny_model: Path,
    prompt: Int32,
    tmp_path: Path,
) -> None:
    make_tiny_text(tmp_path, seed=2, width=64)
    places = [("engine-0", left_by_a_dead_trainer.url)]
    async with EngineClient(left_by_a_dead_trainer.url, vocab_size=32) as client:
        assert not await client.ready()
        (left,) = await publisher.recover(places)
        assert left.error is not None
        assert "in the middle of an update" in left.error
        assert not await client.ready()

        sender = GroupSender(torch.device("cpu"), address="127.0.0.1", timeout=30.0)
        sender.set_weights(load_file(tmp_path / "model.safetensors"))
        group = GroupPublisher(publisher, sender, checkpoint_shapes(tiny_model), "float32")
        for step in (201, 202):
            (update,) = await group.publish(places, WeightVersion(step, 1))
            assert update.ok, update.error
        generation = await client.generate(prompt, SamplingParams(8, sampling_seed=1))
        await group.close()
    assert [span.version for span in generation.spans] == [WeightVersion(202, 1)]
    ids = torch.from_numpy(np.concatenate([prompt, generation.tokens])).long()[None]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()
    assert np.abs(generation.log_probs - expected).max() < 1e-4
