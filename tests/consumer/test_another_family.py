"""Another family of models that see, added as docs/images.md says: LLaVA, whose images all have one size.

Everything else takes it as it is: ids are its processor's, and log-probs are those of its own call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pictured import Frames, log_probs_by_transformers, pictured_groups
from PIL import Image
from torch import Tensor
from transformers import (
    AutoProcessor,
    CLIPImageProcessor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from stream_rl.config import ModelConfig, MultimodalConfig, TrainerConfig
from stream_rl.consumer.batching import flatten
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.micro_batch import micro_batches, plan_passes
from stream_rl.consumer.pictures import Pictures
from stream_rl.errors import ModelError
from stream_rl.models.tiny_vlm import VLM_WORDS, vlm_tokenizer
from stream_rl.multimodal import family as families
from stream_rl.multimodal.pixels import Processed
from stream_rl.producer.chat import load_chat_encoder

CPU = torch.device("cpu")
SIDE, PATCH = 12, 4
PLACEHOLDER = VLM_WORDS.index("<|image_pad|>")
MIXED = [[1, 2, 0, 3], [0, 0, 0, 0]]
"""Images of each sample of two groups."""


class Llava:
    """LLaVA: every image is scaled to one size, and positions count on through it."""

    axes = 1
    model_types: ClassVar[tuple[str, ...]] = ("llava",)

    def __init__(self, processor: Any, config: Any) -> None:
        self._images = processor.image_processor
        self._features: int = (config.vision_config.image_size // config.vision_config.patch_size) ** 2
        self.placeholder: int = config.image_token_id
        self.forbidden: tuple[int, ...] = (self.placeholder,)

    def tokens_of(self, height: int, width: int) -> int:
        return self._features

    def pixels(self, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        return {"pixel_values": self._images(images=list(images), return_tensors="pt")["pixel_values"]}

    def features_of(self, pixels: Mapping[str, Tensor]) -> list[int]:
        return [self._features] * len(pixels["pixel_values"])

    def positions(
        self, length: int, starts: Sequence[int], pixels: Sequence[Mapping[str, Tensor]]
    ) -> NDArray[np.int64]:
        return np.arange(length)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LLaVA with random weights and its processor."""
    out, size = tmp_path_factory.mktemp("models") / "tiny-llava", {"height": SIDE, "width": SIDE}
    common = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "image_size": SIDE, "patch_size": PATCH, **common},
        text_config={"model_type": "qwen2", "vocab_size": len(VLM_WORDS), "num_key_value_heads": 1, **common},
        image_token_index=PLACEHOLDER,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlavaForConditionalGeneration(config).save_pretrained(out)
    tokenizer = vlm_tokenizer()
    images = CLIPImageProcessor(size=size, crop_size=size)
    LlavaProcessor(  # type: ignore[no-untyped-call]
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=tokenizer.chat_template,
        image_token=VLM_WORDS[PLACEHOLDER],
        num_additional_image_tokens=1,
    ).save_pretrained(out)
    return out


@pytest.fixture
def known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Llava:
    """Its family, among those that are known."""
    with pytest.raises(ModelError, match=r"is a llava, which sees in a way that is not known here \(known: qwen2_vl"):
        families.load_family(str(folder))
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, Llava))
    found = families.load_family(str(folder))
    assert isinstance(found, Llava)
    return found


async def test_ids_are_those_of_its_own_processor(folder: Path, known: Llava) -> None:
    picture = Image.effect_noise((30, 20), 90).convert("RGB")
    content = [{"type": "text", "text": "go"}, {"type": "image", "image": picture}, {"type": "text", "text": "where"}]
    processor = AutoProcessor.from_pretrained(folder)  # type: ignore[no-untyped-call]
    bare = [{"role": "user", "content": [content[0], {"type": "image"}, content[2]]}]
    text = processor.apply_chat_template(bare, tokenize=False, add_generation_prompt=True)

    chat = load_chat_encoder(ModelConfig(path=str(folder)), MultimodalConfig())
    shown = await chat.show_prompt([{"role": "user", "content": content}])

    assert shown.tokens.tolist() == processor(text=text, images=[picture])["input_ids"][0]
    assert shown.image_tokens == ((SIDE // PATCH) ** 2,)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("packing", [True, False])
def test_log_probs_of_mixed_batches_are_those_of_its_own_call(
    folder: Path, known: Llava, tmp_path: Path, packing: bool
) -> None:
    frames = Frames(known, SIDE)
    groups = pictured_groups(frames, MIXED)
    policy = load_policy(ModelConfig(path=str(folder)), CPU, TrainerConfig(packing=packing))
    assert policy.packed == packing
    processed = Processed(known, MultimodalConfig(), tmp_path)
    pictures = Pictures(processed, lambda names: {name: frames.data[name] for name in names}, str(folder))
    samples = pictures.shown(flatten(groups, trainer_version=0, max_staleness=1), groups)
    found = np.zeros(len(samples.tokens), np.float32)
    passes = plan_passes(samples.lengths, 120, packed=packing)
    for batch in micro_batches(samples, np.zeros(len(samples.tokens), np.float32), passes, packed=packing):
        with torch.no_grad():
            found[batch.places.numpy()] = policy(batch)[0].numpy()

    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    flat = [sample for group in groups for sample in group.samples]
    expected = [log_probs_by_transformers(model, sample, frames.data, known) for sample in flat]
    np.testing.assert_allclose(found[samples.carries_loss], torch.cat(expected).numpy(), atol=2e-5)
