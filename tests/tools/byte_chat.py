"""A tokenizer that writes any text, byte by byte, with chat templates that show tools, or do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stream_rl.agents import Answer

SHOWN = "{% for tool in tools or [] %}<|im_start|>system\n{{ tool | tojson }}<|im_end|>\n{% endfor %}"
TURNS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_TOOL_ROLE = "{% for m in messages if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endfor %}"
END = "<|im_end|>"


LLAMA = (
    "<|begin_of_text|>{% for tool in tools or [] %}<|start_header_id|>system<|end_header_id|>\n\n{{ tool | tojson }}"
    "<|eot_id|>{% endfor %}{% for m in messages %}<|start_header_id|>"
    "{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""Marks and roles of Llama 3."""
LLAMA_MARKS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>"]


def byte_tokenizer(
    template: str = SHOWN + TURNS, end: str = END, marks: Sequence[str] = ("<|im_start|>",)
) -> PreTrainedTokenizerFast:
    """One token for each byte, and marks: those of ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token=end, pad_token=end, additional_special_tokens=list(marks)
    )
    tokenizer.chat_template = template
    return tokenizer


def byte_model(folder: Path, template: str = SHOWN + TURNS) -> Path:
    """A model's folder without weights: enough for a producer with a scripted engine."""
    byte_tokenizer(template).save_pretrained(folder)
    return folder


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> np.ndarray:
    """Ids of a text, int32 (n,)."""
    return np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)


def answer(tokenizer: PreTrainedTokenizerFast, text: str, finish_reason: str = "stop") -> Answer:
    """What a model says."""
    ids = encode(tokenizer, text + END * (finish_reason == "stop"))
    return Answer(text, ids, np.zeros(len(ids), np.float32), finish_reason)


def calls(*made: str) -> str:
    """Calls in the form of Hermes."""
    return "".join(f"<tool_call>{call}</tool_call>" for call in made)


def call(name: str, arguments: str) -> str:
    """One call; the arguments are JSON."""
    return f'{{"name": "{name}", "arguments": {arguments}}}'


Script = Sequence[str]
