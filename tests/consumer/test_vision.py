"""Images in the trainer: positions, features and log-probs are transformers' own, on mixed batches and on any ranks."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pictured import Frames, log_probs_by_transformers, pictured_groups
from PIL import Image
from ranks import on_ranks
from transformers import AutoModelForImageTextToText

from stream_rl.config import Config, ModelConfig, MultimodalConfig, TrainerConfig
from stream_rl.consumer.batching import Samples, flatten
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.micro_batch import micro_batches, plan_passes
from stream_rl.consumer.pictures import Pictures
from stream_rl.consumer.reference import load_reference
from stream_rl.consumer.update import Updater
from stream_rl.errors import ImageError, ImageMismatch, ModelError
from stream_rl.models.tiny_vlm import FRAME
from stream_rl.multimodal.family import Family, load_family
from stream_rl.multimodal.pixels import Processed, merged
from stream_rl.multimodal.reading import rgb
from stream_rl.sample import Group

CPU = torch.device("cpu")
MIXED = [[1, 1, 1, 1], [0, 2, 0, 5], [0, 0, 0, 0]]
"""Images of each sample of three groups."""


@pytest.fixture
def family(tiny_vlm: Path) -> Family:
    found = load_family(str(tiny_vlm))
    assert found is not None
    return found


@pytest.fixture
def frames(family: Family, tiny_vlm: Path) -> Frames:
    return frames_of(family, tiny_vlm)


def frames_of(family: Family, path: Path) -> Frames:
    return Frames(family, FRAME["qwen2_5_vl" if "2.5" in path.name else "qwen3_vl"])


def flat(groups: list[Group], frames: Frames, tmp_path: Path) -> Samples:
    """The groups' samples with their images."""
    processed = Processed(frames.family, MultimodalConfig(), tmp_path)
    samples = flatten(groups, trainer_version=0, max_staleness=1)
    pictures = Pictures(processed, lambda names: {name: frames.data[name] for name in names}, "a model")
    return pictures.shown(samples, groups)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("packing", [True, False])
def test_log_probs_of_mixed_batches_are_those_of_the_models_own_call(tiny_vlm, frames, tmp_path, packing):
    groups = pictured_groups(frames, MIXED)
    policy = load_policy(ModelConfig(path=str(tiny_vlm)), CPU, TrainerConfig(packing=packing))
    assert policy.packed == packing
    samples = flat(groups, frames, tmp_path)
    passes = plan_passes(samples.lengths, 200, packed=packing)
    found = np.zeros(len(samples.tokens), np.float32)
    for batch in micro_batches(samples, np.zeros(len(samples.tokens), np.float32), passes, packed=packing):
        with torch.no_grad():
            found[batch.places.numpy()] = policy(batch)[0].numpy()

    model = AutoModelForImageTextToText.from_pretrained(tiny_vlm, dtype=torch.float32)
    for number, sample in enumerate(sample for group in groups for sample in group.samples):
        expected = log_probs_by_transformers(model, sample, frames.data, frames.family)
        start = int(samples.lengths[:number].sum())
        of_sample = slice(start, start + int(samples.lengths[number]))
        mine = found[of_sample][samples.carries_loss[of_sample]]
        np.testing.assert_allclose(mine, expected.numpy(), atol=2e-5)


def test_positions_are_the_models_own(tiny_vlm, frames, family):
    model = AutoModelForImageTextToText.from_pretrained(tiny_vlm)
    (group,) = pictured_groups(frames, [[1, 2, 5, 0]])
    for sample in group.samples:
        pixels = [family.pixels([rgb(frames.data[name])]) for name in sample.images]
        ids = torch.from_numpy(sample.tokens.astype(np.int64))[None]
        kinds = (ids == family.placeholder).int()
        grids = torch.cat([one["image_grid_thw"] for one in pixels]) if pixels else None
        expected, _ = model.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grids)
        places = np.flatnonzero(kinds[0])
        starts = [int(place) for place in places if place - 1 not in places]

        assert np.array_equal(family.positions(ids.shape[1], starts, pixels), expected[:, 0].numpy())


def test_features_are_counted_without_looking_at_the_image(family):
    random = np.random.default_rng(0)
    for _ in range(20):
        height, width = (int(side) for side in random.integers(4, 300, 2))
        pixels = family.pixels([Image.new("RGB", (width, height))])

        assert family.tokens_of(height, width) == family.features_of(pixels)[0]


def test_placeholders_and_features_that_differ_are_refused_with_the_sample_named(frames, tmp_path):
    groups = pictured_groups(frames, [[1, 2]])
    sample = groups[0].samples[1]
    sample.prompt_tokens = np.append(sample.prompt_tokens, frames.family.placeholder).astype(np.int32)

    with pytest.raises(ImageMismatch, match=r"sample 0-1 has .* placeholders"):
        flat(groups, frames, tmp_path)


@pytest.mark.usefixtures("one_rank")
def test_tokens_that_stand_for_images_are_not_read_without_them(tiny_vlm, frames):
    groups = pictured_groups(frames, [[1, 2]])
    policy = load_policy(ModelConfig(path=str(tiny_vlm)), CPU)
    samples = flatten(groups, trainer_version=0, max_staleness=1)
    (batch,) = micro_batches(
        samples,
        np.zeros(len(samples.tokens), np.float32),
        plan_passes(samples.lengths, 10_000, packed=True),
        packed=True,
    )

    with pytest.raises(ImageMismatch, match="tokens of a pass stand for images, and it has none"):
        policy(batch)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("tiny_vlm", ["tiny-vlm"], indirect=True)
def test_a_reference_that_reads_text_only_is_no_reference_of_what_sees(tiny_vlm, tiny_model, tmp_path):
    """It would be called with the placeholders, without the images, and nothing would say so."""
    policy = load_policy(ModelConfig(path=str(tiny_vlm)), CPU)
    tree = {"run": str(tmp_path), "model": {"path": str(tiny_vlm)}, "environment": {"path": "guess_number"}}
    reference = {"trainer": {"kl_coefficient": 0.1, "reference_path": str(tiny_model)}}

    with pytest.raises(ModelError, match=r"reference_path=.* does not take images as model\.path, a qwen3_vl, does"):
        load_reference(Config.parse(tree | reference), policy, CPU)


def test_images_for_a_model_that_reads_text_only_are_refused(frames):
    groups = pictured_groups(frames, [[0, 2]])
    samples = flatten(groups, trainer_version=0, max_staleness=1)
    pictures = Pictures(None, lambda _: {}, "models/tiny-text")

    with pytest.raises(ModelError, match=r"0-1 shows 2 images, and model\.path='models/tiny-text' reads text only"):
        pictures.shown(samples, groups)
    unseen = pictured_groups(frames, [[0, 0]])
    samples = flatten(unseen, trainer_version=0, max_staleness=1)
    assert pictures.shown(samples, unseen) is samples


def test_what_cannot_be_merged_is_named():
    one = torch.zeros(1, 2)
    assert merged([{"pixel_values": one}, {"pixel_values": one}])["pixel_values"].shape == (2, 2)
    for other in ({"pixel_values": [1, 2]}, {}):
        with pytest.raises(ImageError, match=r"image 1 has (list|NoneType) under 'pixel_values'"):
            merged([{"pixel_values": one}, other])


@pytest.mark.parametrize(
    ("other", "form"),
    [
        (torch.zeros(1, 3), r"float32 \(1, 3\)"),
        (torch.zeros(1, 2, 1), r"float32 \(1, 2, 1\)"),
        (torch.zeros(1, 2, dtype=torch.float64), r"float64 \(1, 2\)"),
        (torch.zeros(1, 2, dtype=torch.int64), r"int64 \(1, 2\)"),
    ],
)
def test_values_of_another_form_are_not_merged_and_both_are_named(other, form):
    one = torch.zeros(4, 2)
    same = {"pixel_values": one, "image_grid_thw": torch.ones(1, 3, dtype=torch.int64)}
    assert merged([same, same])["pixel_values"].shape == (8, 2)
    with pytest.raises(ImageError, match=rf"2 has {form} under 'pixel_values' where image 0 has float32 \(4, 2\)"):
        merged([same, same, same | {"pixel_values": other}])
    with pytest.raises(ImageError, match="image 0 has a single number under 'scale'"):
        merged([{"scale": torch.tensor(1.0)}])


class TestProcessed:
    def test_each_image_is_asked_for_and_processed_once(self, frames, tmp_path):
        (group,) = pictured_groups(frames, [[2, 2]])
        asked: list[str] = []

        def load(names):
            asked.extend(names)
            return {name: frames.data[name] for name in names}

        processed = Processed(frames.family, MultimodalConfig(), tmp_path)
        names = [name for sample in group.samples for name in sample.images]
        first, second = processed.of(names, load), processed.of(names, load)

        assert sorted(asked) == sorted(set(names))
        assert all(first[name] is second[name] for name in names)

    def test_kept_on_disk_they_are_read_by_other_ranks_and_starts(self, frames, tmp_path):
        name, _, _ = frames.shown(1)
        settings = MultimodalConfig(store="disk", trainer_cache_mib=0)
        made = Processed(frames.family, settings, tmp_path).of([name], lambda _: frames.data)

        read = Processed(frames.family, settings, tmp_path).of([name], lambda _: pytest.fail("asked"))

        assert all(torch.equal(made[name][key], read[name][key]) for key in made[name])

    def test_what_is_kept_on_disk_is_bounded(self, frames, tmp_path):
        settings = MultimodalConfig(store="disk", store_mib=1, trainer_cache_mib=0)
        processed = Processed(frames.family, settings, tmp_path)
        for seed in range(40):
            file = io.BytesIO()
            Image.effect_noise((64, 64), 50 + seed).convert("RGB").save(file, "PNG")
            processed.of([str(seed)], lambda names, file=file: dict.fromkeys(names, file.getvalue()))

        assert 0 < sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2**20

    def test_a_torn_file_is_made_again(self, frames, tmp_path):
        name, _, _ = frames.shown(1)
        settings = MultimodalConfig(store="disk", trainer_cache_mib=0)
        (tmp_path / f"{name}.safetensors").write_bytes(b"torn")

        assert Processed(frames.family, settings, tmp_path).of([name], lambda _: frames.data)[name]

    def test_an_image_that_the_buffer_garbled_is_named(self, frames, tmp_path):
        with pytest.raises(ImageError, match="image abc cannot be processed"):
            Processed(frames.family, MultimodalConfig(), tmp_path).of(["abc"], lambda _: {"abc": b"none"})


def gradients(path: Path, folder: Path, frozen: list[str]) -> dict[str, Any]:
    """Of one update on this rank's share of MIXED: with two ranks, the second has no image."""
    settings = TrainerConfig(
        learning_rate=1e-6, max_grad_norm=1e9, max_tokens_per_micro_batch=120, entropy_coefficient=0.01, frozen=frozen
    )
    updater = Updater(load_policy(ModelConfig(path=str(path)), CPU, settings), settings, CPU)
    assert updater.policy.sight is not None
    frames = frames_of(updater.policy.sight.family, path)
    groups = pictured_groups(frames, MIXED)
    ranks = dist.get_world_size()
    mine = groups if ranks == 1 else groups[:2] if dist.get_rank() == 0 else groups[2:]
    found: dict[str, Any] = {}

    def record(*_: object) -> None:
        for name, value in updater.policy.named_parameters():
            if value.grad is not None:
                found[name] = value.grad.full_tensor().numpy()

    updater.optimizer.register_step_pre_hook(record)
    updater.step([flat(mine, frames, folder)], 1)
    return found


def gradients_of_both(path: Path, folder: Path) -> list[dict[str, Any]]:
    """With the vision tower trained, and frozen."""
    return [gradients(path, folder, frozen) for frozen in ([], ["model.visual.*"])]


@pytest.mark.usefixtures("one_rank")
def test_a_rank_without_images_beside_one_with_them_gives_the_gradients_of_one_rank(tiny_vlm, tmp_path):
    whole = gradients_of_both(tiny_vlm, tmp_path)
    ranks = on_ranks(2, gradients_of_both, tiny_vlm, tmp_path)

    for mine in ranks:
        assert isinstance(mine, list), mine
        for found, wanted in zip(mine, whole, strict=True):
            assert found.keys() == wanted.keys()
            scale = max(np.abs(value).max() for value in wanted.values())
            for name, value in wanted.items():
                np.testing.assert_allclose(found[name], value, atol=1e-5 * scale, err_msg=name)
    trained, frozen = (any("visual" in name for name in names) for names in whole)
    assert (trained, frozen) == (True, False)
