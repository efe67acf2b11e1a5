"""A whole trainer whose model sees: the images of the prompt and of every later turn are in what moves the weights."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from pictured import Frames, pictured_groups
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from trainer_runs import CPU, Run

from stream_rl.buffer import Outcome, SampleStart, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.consumer.batching import flatten
from stream_rl.consumer.collectives import process_group
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.pictures import Pictures
from stream_rl.consumer.update import Updater
from stream_rl.consumer.weights import gather
from stream_rl.models.tiny_vlm import FRAME
from stream_rl.multimodal.family import load_family
from stream_rl.sample import Group, Sample, Status, StopReason, WeightVersion

IMAGES = [[2, 3], [1, 2]]
"""Of each sample of two groups; the first of each stands in the prompt."""


@pytest.fixture
def run(tiny_vlm: Path, tmp_path: Path, buffer_url: str) -> Run:
    torch.set_num_threads(1)
    tree = {
        "run": str(tmp_path / tiny_vlm.name), "model": {"path": str(tiny_vlm)}, "environment": {"path": "guess_number"},
        "rollout": {"groups_per_step": 2, "group_size": 2},
        "trainer": {"steps": 1, "learning_rate": 0.01, "device": "cpu", "collective_timeout": 60.0},
    }  # fmt: skip
    return Run(Config.parse(tree), buffer_url)


async def play(buffer: TrajectoryBuffer, samples: list[Sample], frames: Frames) -> None:
    """Commits these as the run's, in order."""
    await buffer.engine_joined("engine-0", "http://127.0.0.1:1", 1)
    await buffer.engine_serving("engine-0", WeightVersion(0))
    await buffer.heartbeat("p", 60.0)
    for leased, sample in zip(await buffer.lease("p", len(samples)), samples, strict=True):
        assert (leased.lease.sample_id.group, leased.lease.sample_id.index) == (sample.group_index, sample.index)
        await buffer.put_images([frames.data[name] for name in sample.images])
        start = SampleStart(
            "p", sample.prompt_tokens, images=sample.prompt_images, image_tokens=sample.prompt_image_tokens
        )
        end = Outcome(Status.COMPLETED, StopReason.ENV_DONE, sample.reward or 0.0)
        await buffer.commit(leased.lease, 0, [start, *sample.turns], end)
    await buffer.engine_left("engine-0")


def black(data: bytes) -> bytes:
    """An image of the same size that shows nothing."""
    file = io.BytesIO()
    Image.new("RGB", Image.open(io.BytesIO(data)).size).save(file, "PNG")
    return file.getvalue()


def by_hand(run: Run, groups: list[Group], frames: Frames, folder: Path, *, sees: bool) -> dict[str, Tensor]:
    """The weights after the same step without a trainer, with the images, or with black ones in their places."""
    config = run.config
    with process_group(0, 1, f"file://{folder}/by-hand-{sees}", CPU, 60.0):
        policy = load_policy(config.model, CPU, config.trainer)
        samples = flatten(groups, trainer_version=0, max_staleness=config.scheduling.max_staleness)
        shown = {name: data if sees else black(data) for name, data in frames.data.items()}
        pictures = Pictures.of(config, policy, lambda names: {name: shown[name] for name in names})
        Updater(policy, config.trainer, CPU).step([pictures.shown(samples, groups)], 1)
        return gather(policy, torch.float32)


def test_images_of_every_turn_reach_the_weights(run: Run, tiny_vlm: Path, tmp_path: Path) -> None:
    family = load_family(str(tiny_vlm))
    assert family is not None
    frames = Frames(family, FRAME["qwen2_5_vl" if "2.5" in tiny_vlm.name else "qwen3_vl"])
    groups = pictured_groups(frames, IMAGES)
    run.open()
    run.ask(lambda buffer: play(buffer, [sample for group in groups for sample in group.samples], frames))

    run.train()

    weights = load_file(run.config.folder / "checkpoints" / "hf" / "model.safetensors")
    for name, value in by_hand(run, groups, frames, tmp_path, sees=True).items():
        torch.testing.assert_close(weights[name], value, atol=1e-6, rtol=0)
    blind = by_hand(run, groups, frames, tmp_path, sees=False)
    assert max(float((weights[name] - value).abs().max()) for name, value in blind.items()) > 1e-3
