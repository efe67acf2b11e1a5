"""Tiny random models of the families that people train: those that are packed, and those that are padded, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from trajectories import VOCABULARY
from transformers import AutoConfig, AutoModelForCausalLM

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
HEADS = {**SMALL, "head_dim": 8}
EXPERTS = {**HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.2}
FALCON = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "initializer_range": 0.2,
}  # fmt: skip

PACKABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, tied": ("llama", {**HEADS, "tie_word_embeddings": True}),
    "mistral, sliding": ("mistral", {**HEADS, "sliding_window": 5}),
    "mixtral": ("mixtral", {**HEADS, "num_local_experts": 4}),
    "qwen2": ("qwen2", SMALL),
    "qwen3": ("qwen3", HEADS),
    "qwen3, mixed": (
        "qwen3",
        {
            **HEADS, "use_sliding_window": True, "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen3_moe": ("qwen3_moe", EXPERTS),
    "gemma": ("gemma", HEADS),
    "gemma3": (
        "gemma3_text",
        {
            **HEADS, "query_pre_attn_scalar": 8, "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "phi3, sliding": ("phi3", {**SMALL, "sliding_window": 5}),
    "deepseek_v3": (
        "deepseek_v3",
        {
            **SMALL, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
            "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16, "q_lora_rank": 16, "kv_lora_rank": 8,
            "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1,
        },
    ),
    "gpt_neox": ("gpt_neox", {name: value for name, value in SMALL.items() if name != "num_key_value_heads"}),
    "smollm3": ("smollm3", SMALL),
    "olmo2": ("olmo2", SMALL),
    "glm4": ("glm4", HEADS),
    "cohere, scaled": ("cohere", {**SMALL, "logit_scale": 0.25}),
    "granite, scaled": ("granite", {**HEADS, "logits_scaling": 4.0}),
    "seed_oss, residual dropout": ("seed_oss", {**HEADS, "attention_dropout": 0.1, "residual_dropout": 0.1}),
    "gpt_bigcode, dropout": ("gpt_bigcode", GPT),
    "gpt2": ("gpt2", GPT),
}  # fmt: skip
PADDED: dict[str, tuple[str, dict[str, Any], str]] = {
    "gemma2, capped": (
        "gemma2", {**HEADS, "query_pre_attn_scalar": 8}, "it caps the scores of its attention",
    ),
    "gpt_oss, sinks": ("gpt_oss", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}, "s_aux"),
    "falcon, alibi": ("falcon", {**FALCON, "alibi": True}, "does not let its attention be replaced"),
    "bloom, alibi": (
        "bloom", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2},
        "does not let its attention be replaced",
    ),
    "mamba": (
        "mamba", {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        "does not let its attention be replaced",
    ),
}  # fmt: skip


def save_random(kind: str, settings: dict[str, Any], folder: Path) -> Path:
    """Writes a random model of this kind."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings)).save_pretrained(folder)
    return folder
