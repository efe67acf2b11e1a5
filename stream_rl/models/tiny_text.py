"""A random Qwen3 of 304k parameters that learns a word game on two CPU cores, and a tokenizer of 32 whole words."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from stream_rl.models.word_tokenizer import word_tokenizer

__all__ = ["WORDS", "make_tiny_text", "tiny_tokenizer"]

WORDS = (
    "<pad>", "<bos>", "<unk>", "<|im_start|>", "<|im_end|>", "\n", "system", "user", "assistant", "tool",
    *(str(number) for number in range(17)),
    "guess", "higher", "lower", "correct", "invalid",
)  # fmt: skip

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CONTEXT_LENGTH = 4096
HEAD = 16
WIDTH = 128
"""At 64 some runs of the demo settle on a policy that misses a number or two."""


def make_tiny_text(out: Path, *, seed: int = 0, width: int = WIDTH) -> None:
    """Writes the model and its tokenizer into the folder `out`, float32. Equal seeds give equal weights.

    Args:
        width: the hidden size, a multiple of 32; heads are 16 wide.
    """
    tokenizer = tiny_tokenizer()
    config = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=width // HEAD,
        num_key_value_heads=width // HEAD // 2,
        head_dim=HEAD,
        max_position_embeddings=CONTEXT_LENGTH,
        # From 0.02 the demo needs nearly twice as many steps; from 0.1 it does not learn.
        initializer_range=0.05,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """The word-level tokenizer with its ChatML template."""
    marks = ("<|im_start|>", "<|im_end|>")
    return word_tokenizer(WORDS, CHAT_TEMPLATE, marks=marks, context_length=CONTEXT_LENGTH, bos_token="<bos>")
