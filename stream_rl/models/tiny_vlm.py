"""Random vision-language models that learn to act on small frames on two CPU cores: a Qwen3-VL and a Qwen2.5-VL.

A frame of `FRAME` pixels a side is 2x2 patches and one image token. Larger images are taken as they are, up to
`LARGEST` pixels; nothing is ever scaled but to a multiple of the frame's side. Both models have one tokenizer, of
whole words, and a ChatML template whose message content is text or a list of parts, images among them.

Weights are random, but that what only a template may write (`CONTROL`) is hardly ever sampled, as in any trained model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from stream_rl.models.word_tokenizer import word_tokenizer

__all__ = ["CONTROL", "FRAME", "VLM_WORDS", "make_tiny_vlm", "make_tiny_vlm_qwen2_5", "vlm_tokenizer"]

VISION_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

# Few words: an action is found by chance before it is learned.
VLM_WORDS = (
    "<pad>", "<unk>", "<|im_start|>", "<|im_end|>", *VISION_MARKS, "\n", "system", "user", "assistant",
    "go", "where", "up", "down", "left", "right", "northwest", "northeast", "southwest", "southeast",
    "invalid", "wrong",
)  # fmt: skip

CONTROL = ("<pad>", "<unk>", "<|im_start|>", *VISION_MARKS)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CONTEXT_LENGTH = 40960
FRAME = {"qwen3_vl": 32, "qwen2_5_vl": 28}
"""Side in pixels, by model type, of the frame that is one image token."""
LARGEST = 2048 * 2048

# Wider than usual: the recipes in docs/vision.md were found with it.
SPREAD = 0.1
MARK = 0.5
TEXT = {
    "vocab_size": len(VLM_WORDS),
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_LENGTH,
    "initializer_range": SPREAD,
}
VISION = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 64}


def make_tiny_vlm(out: Path, *, seed: int = 0) -> None:
    """Writes a Qwen3-VL, float32, with its processor into the folder `out`. Equal seeds give equal weights."""
    tokenizer = vlm_tokenizer()
    config = Qwen3VLConfig(
        text_config={
            **TEXT,
            **_ends(tokenizer),
            "head_dim": 16,
            "rope_parameters": {**_rope(4, 2, 2), "mrope_interleaved": True},
        },
        vision_config={
            **VISION,
            "patch_size": 16,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
            "initializer_range": SPREAD,
        },
        tie_word_embeddings=False,
        **_places(tokenizer),
    )
    images = Qwen2VLImageProcessor(patch_size=16, size=_sizes(32), image_mean=[0.5] * 3, image_std=[0.5] * 3)
    _random(Qwen3VLForConditionalGeneration, config, seed).save_pretrained(out)
    _untyped(Qwen3VLProcessor, images, tokenizer, Qwen3VLVideoProcessor(), chat_template=CHAT_TEMPLATE).save_pretrained(
        out
    )


def make_tiny_vlm_qwen2_5(out: Path, *, seed: int = 0) -> None:
    """Writes a Qwen2.5-VL, float32, with its processor into the folder `out`. Equal seeds give equal weights."""
    tokenizer = vlm_tokenizer()
    config = Qwen2_5_VLConfig(
        text_config={
            **TEXT,
            **_ends(tokenizer),
            "rope_parameters": _rope(2, 3, 3),
        },
        vision_config={**VISION, "patch_size": 14, "fullatt_block_indexes": [0], "initializer_range": SPREAD},
        tie_word_embeddings=False,
        **_places(tokenizer),
    )
    images = Qwen2VLImageProcessor(patch_size=14, size=_sizes(28))
    _random(Qwen2_5_VLForConditionalGeneration, config, seed).save_pretrained(out)
    _untyped(
        Qwen2_5_VLProcessor, images, tokenizer, Qwen2VLVideoProcessor(), chat_template=CHAT_TEMPLATE
    ).save_pretrained(out)


def vlm_tokenizer() -> PreTrainedTokenizerFast:
    """The word-level tokenizer of both models, with their chat template."""
    marks = ("<|im_start|>", "<|im_end|>", *VISION_MARKS)
    return word_tokenizer(VLM_WORDS, CHAT_TEMPLATE, marks=marks, context_length=CONTEXT_LENGTH)


def _random(model_class: Callable[..., Any], config: Any, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    _hold_back_control(model)
    return model


def _untyped(made: Callable[..., Any], *parts: Any, **named: Any) -> Any:
    """Calls what transformers leaves without types."""
    return made(*parts, **named)


@torch.no_grad()
def _hold_back_control(model: Any) -> None:
    """Every hidden state's first number is MARK, no layer writes there, and control words' logits count it negative."""
    language, vision = model.model.language_model, model.model.visual
    merger = vision.merger.linear_fc2 if hasattr(vision.merger, "linear_fc2") else vision.merger.mlp[-1]
    writers = [merger, *(added.linear_fc2 for added in getattr(vision, "deepstack_merger_list", ()))]
    writers += [part for layer in language.layers for part in (layer.self_attn.o_proj, layer.mlp.down_proj)]
    for writer in writers:
        writer.weight[0] = 0.0
    language.embed_tokens.weight[:, 0] = merger.bias[0] = MARK
    model.lm_head.weight[:, 0] = 0.0
    model.lm_head.weight[[VLM_WORDS.index(word) for word in CONTROL], 0] = -12.0


def _ends(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}


def _places(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(mark)
        for name, mark in zip(("vision_start", "vision_end", "image", "video"), VISION_MARKS, strict=True)
    }


def _rope(*sections: int) -> dict[str, Any]:
    """`sections`: how many of a head's rotations turn with time, with height and with width."""
    return {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sections)}


def _sizes(side: int) -> dict[str, int]:
    return {"shortest_edge": side * side, "longest_edge": LARGEST}
