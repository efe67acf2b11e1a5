"""The tiny vision-language models: what they promise to everything that trains on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from stream_rl.models import make_model
from stream_rl.models.tiny_vlm import CONTROL, FRAME, VLM_WORDS, make_tiny_vlm, make_tiny_vlm_qwen2_5

FAMILIES = {"tiny-vlm": "qwen3_vl", "tiny-vlm-qwen2.5": "qwen2_5_vl"}
RED, GREEN = (255, 0, 0), (0, 255, 0)


@pytest.fixture(scope="module", params=list(FAMILIES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / request.param
    make_model(request.param, out)
    return out


def inputs(processor, *images: Image.Image):
    content = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": "go"}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    return text, processor(text=[text], images=list(images), return_tensors="pt")


def test_the_template_writes_chatml_with_a_placeholder_for_each_image(folder: Path) -> None:
    processor = AutoProcessor.from_pretrained(folder)
    side = FRAME[FAMILIES[folder.name]]

    text, encoded = inputs(processor, Image.new("RGB", (side, side)), Image.new("RGB", (3 * side, 2 * side)))

    image = "<|vision_start|><|image_pad|><|vision_end|>"
    assert text == f"<|im_start|>user\n{image}{image}go<|im_end|>\n<|im_start|>assistant\n"
    pads = (encoded["input_ids"] == VLM_WORDS.index("<|image_pad|>")).sum().item()
    assert pads == encoded["mm_token_type_ids"].sum().item() == 1 + 6
    assert encoded["image_grid_thw"].tolist() == [[1, 2, 2], [1, 4, 6]]
    plain = [{"role": "user", "content": "go"}]
    assert processor.apply_chat_template(plain, tokenize=False) == "<|im_start|>user\ngo<|im_end|>\n"


def test_what_only_a_template_may_write_is_hardly_ever_sampled(folder: Path) -> None:
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    _, encoded = inputs(processor, *(Image.new("RGB", (32, 32), colour) for colour in (RED, GREEN)))

    with torch.no_grad():
        chances = model(**encoded).logits[0].softmax(-1)

    control = [VLM_WORDS.index(word) for word in CONTROL]
    assert chances[:, control].sum(-1).max() < 0.05
    assert chances[-1].max() < 0.8


def test_the_model_sees(folder: Path) -> None:
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    assert (model.config.model_type, model.dtype) == (FAMILIES[folder.name], torch.float32)
    assert model.generation_config.eos_token_id == VLM_WORDS.index("<|im_end|>")
    side = FRAME[model.config.model_type]

    with torch.no_grad():
        red, again, green = (
            model(**inputs(processor, Image.new("RGB", (side, side), colour))[1]).logits[0, -1]
            for colour in (RED, RED, GREEN)
        )

    assert torch.equal(red, again)
    assert (red - green).abs().max() > 0.01


@pytest.mark.parametrize("make", [make_tiny_vlm, make_tiny_vlm_qwen2_5])
def test_the_seed_decides_the_weights_and_leaves_torch_alone(make: Callable[..., None], tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        make(tmp_path / name, seed=seed)
    assert torch.equal(torch.random.get_rng_state(), before)
    one, same, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "same", "other"))
    assert one == same != other
