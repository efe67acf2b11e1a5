"""The work of one step, the same for every learner: a random model, and groups whose lengths spread as asked.

Imports no torch: what asks learners for steps needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stream_rl.sample import Group, Sample, Turn, VersionSpan, WeightVersion

GROUP_SIZE = 8
PROMPT_SHARE = 0.25
TEMPERATURE = 0.7
CLIP_LOW, CLIP_HIGH = 0.2, 0.28

FLOPS_FORWARD_AND_BACKWARD = 6
"""For every weight and token: two in the forward pass, four in the backward one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3's sizes."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int

    @property
    def block_weights(self) -> int:
        """Numbers in the matrices of all blocks."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.key_value_heads)
        return self.layers * (attention + 3 * self.hidden * self.feed_forward)

    def flops(self, groups: list[Group]) -> float:
        """Floating-point operations that a step needs: causal attention as such, the head where a token is trained.

        What is padded, masked or computed twice is not needed, and not counted. Source: Chowdhery et al. 2022, "PaLM",
        appendix B.
        """
        samples = [sample for group in groups for sample in group.samples]
        lengths = np.array([len(sample.tokens) for sample in samples], np.float64)
        trained = sum(int(sample.loss_mask.sum()) for sample in samples)
        # Per layer and head: scores and their product with the values, 2 * size operations each, half of the square.
        attention = self.layers * self.heads * 2 * 2 * self.head_size * (lengths**2).sum() / 2
        weights = self.block_weights * lengths.sum() + self.hidden * self.vocabulary * trained
        return float(FLOPS_FORWARD_AND_BACKWARD * weights + 3 * attention)


@dataclass(frozen=True, slots=True)
class Setup:
    """Where and on what a learner computes.

    `tokens` is what a micro-batch may hold, padding included.
    """

    model: Path
    shape: Shape
    device: str
    dtype: str
    threads: int
    tokens: int


class Timed(NamedTuple):
    """One step: seconds, those of CPU time, bytes above what stood there before it, and its loss before the update."""

    seconds: float
    cpu: float
    peak: int
    loss: float


class Cost(NamedTuple):
    """One pass through a head and back: seconds, and bytes above what stood there before."""

    seconds: float
    peak: int


def make_model(folder: Path, shape: Shape, seed: int) -> None:
    """Writes the model and a tokenizer, which TRL wants to see, into `folder`."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from stream_rl.models.tiny_text import tiny_tokenizer

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, head_dim=shape.head_size,
        num_key_value_heads=shape.key_value_heads, max_position_embeddings=65536, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=4, pad_token_id=0,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def make_groups(count: int, *, median: int, longest: int, sigma: float, vocabulary: int, seed: int) -> list[Group]:
    """Groups of one-turn samples with lognormal lengths, a quarter of each the prompt; sigma 0: all of one length."""
    random = np.random.default_rng(seed)
    groups = []
    for number in range(count):
        lengths = np.exp(np.log(median) + sigma * random.standard_normal(GROUP_SIZE))
        samples = [
            _sample(random, number, index, int(np.clip(length, 8, longest)), vocabulary)
            for index, length in enumerate(lengths)
        ]
        groups.append(Group(number, 0, samples, number))
    return groups


def make_long(tokens: int, vocabulary: int, seed: int) -> list[Group]:
    """One group of one sample of so many tokens, half of them the prompt."""
    return [Group(0, 0, [_sample(np.random.default_rng(seed), 0, 0, tokens, vocabulary, prompt_share=0.5)], 0)]


def _sample(
    random: np.random.Generator,
    group: int,
    index: int,
    length: int,
    vocabulary: int,
    *,
    prompt_share: float = PROMPT_SHARE,
) -> Sample:
    prompt = max(1, int(length * prompt_share))
    tokens = random.integers(5, vocabulary, length).astype(np.int32)
    sample = Sample(group, index, "", tokens[:prompt], temperature=TEMPERATURE, reward=float(random.integers(0, 2)))
    log_probs = random.normal(-np.log(vocabulary), 0.1, length - prompt).astype(np.float32)
    span = VersionSpan(0, length - prompt, WeightVersion(0))
    sample.append(Turn(0, tokens[prompt:], log_probs, np.zeros(0, np.int32), (span,)))
    return sample
