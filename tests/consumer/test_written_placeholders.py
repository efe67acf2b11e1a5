"""Ids that stand for images, written by the model itself: the trainer trains them as they are, and reads no image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pictured import WORDS, Frames, log_probs_by_transformers, pictured_groups
from trajectories import turn
from transformers import AutoModelForImageTextToText

from stream_rl.config import ModelConfig, MultimodalConfig
from stream_rl.consumer.batching import Samples, flatten
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.micro_batch import micro_batches, plan_passes
from stream_rl.consumer.pictures import Pictures
from stream_rl.consumer.vision import NOT_SHOWN
from stream_rl.models.tiny_vlm import FRAME
from stream_rl.multimodal.family import load_family
from stream_rl.multimodal.pixels import Processed
from stream_rl.sample import Group, Sample, Turn

CPU = torch.device("cpu")
IMAGES = [[2, 0, 1], [0, 3, 0]]
"""Of each sample of two groups."""


@pytest.fixture
def frames(tiny_vlm: Path) -> Frames:
    family = load_family(str(tiny_vlm))
    assert family is not None
    return Frames(family, FRAME["qwen2_5_vl" if "2.5" in tiny_vlm.name else "qwen3_vl"])


@pytest.fixture
def groups(frames: Frames) -> list[Group]:
    """Every sample's last two ids are a word and one that stands for images."""
    made = pictured_groups(frames, IMAGES)
    for sample, last in zip(flat(made), endings(frames), strict=True):
        sample.append(turn(sample.next_turn, [WORDS[0], last], [], log_prob=-3.0))
    return made


def flat(groups: list[Group]) -> list[Sample]:
    return [sample for group in groups for sample in group.samples]


def endings(frames: Frames) -> list[int]:
    """Each of the forbidden ids in turn."""
    forbidden = frames.family.forbidden
    return [forbidden[number % len(forbidden)] for number in range(sum(map(len, IMAGES)))]


def shown(groups: list[Group], frames: Frames, tmp_path: Path) -> Samples:
    processed = Processed(frames.family, MultimodalConfig(), tmp_path)
    pictures = Pictures(processed, lambda names: {name: frames.data[name] for name in names}, "a model")
    return pictures.shown(flatten(groups, trainer_version=0, max_staleness=1), groups)


def test_the_model_reads_another_id_in_its_place_and_the_target_stays(
    groups: list[Group], frames: Frames, tmp_path: Path
) -> None:
    samples = shown(groups, frames, tmp_path)
    last = np.cumsum(samples.lengths) - 1
    others = np.setdiff1d(np.arange(len(samples.tokens)), last)

    assert samples.images is not None
    assert samples.images.inputs[last].tolist() == [NOT_SHOWN] * len(last)
    assert np.array_equal(samples.images.inputs[others], samples.tokens[others])
    assert samples.tokens[last].tolist() == endings(frames)
    assert samples.carries_loss[last].all()
    assert len(samples.images.names) == sum(map(sum, IMAGES))


@pytest.mark.usefixtures("one_rank")
def test_log_probs_up_to_it_are_the_models_own_and_its_own_is_that_of_the_id(
    groups: list[Group], frames: Frames, tiny_vlm: Path, tmp_path: Path
) -> None:
    policy = load_policy(ModelConfig(path=str(tiny_vlm)), CPU)
    samples = shown(groups, frames, tmp_path)
    passes = plan_passes(samples.lengths, 10_000, packed=policy.packed)
    found = np.zeros(len(samples.tokens), np.float32)
    for batch in micro_batches(samples, np.zeros(len(samples.tokens), np.float32), passes, packed=policy.packed):
        with torch.no_grad():
            found[batch.places.numpy()] = policy(batch)[0].numpy()

    model = AutoModelForImageTextToText.from_pretrained(tiny_vlm, dtype=torch.float32)
    at = 0
    for sample, last in zip(flat(groups), endings(frames), strict=True):
        expected = log_probs_by_transformers(model, without_last(sample), frames.data, frames.family)
        mine = found[at : at + len(sample.tokens)][len(sample.prompt_tokens) :][sample.loss_mask.astype(bool)]
        np.testing.assert_allclose(mine[:-1], expected.numpy(), atol=2e-5)
        word = [turn(sample.next_turn - 1, [WORDS[0], WORDS[1]], [])]
        of_word = log_probs_by_transformers(model, without_last(sample, word), frames.data, frames.family)
        assert mine[-1] < float(of_word[-1]) - 2.0, f"{last} is held back, a word is not"
        at += len(sample.tokens)


def without_last(sample: Sample, ending: list[Turn] | None = None) -> Sample:
    """The sample whose last turn is its first id alone, or `ending`."""
    cut = Sample(
        sample.group_index, sample.index, "p", sample.prompt_tokens,
        prompt_images=sample.prompt_images, prompt_image_tokens=sample.prompt_image_tokens,
    )  # fmt: skip
    for part in [*sample.turns[:-1], *(ending or [turn(sample.next_turn - 1, [WORDS[0]], [])])]:
        cut.append(part)
    return cut
