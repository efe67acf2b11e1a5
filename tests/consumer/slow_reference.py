"""The step's loss once more: one sample and one token at a time, float64, no masks, no padding, no shared code."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from stream_rl.config import TrainerConfig
from stream_rl.sample import Group, Sample


def load(model_path: Path) -> PreTrainedModel:
    """The model in float64."""
    return AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)


def gradients(
    model: PreTrainedModel, start: PreTrainedModel, groups: list[Group], settings: TrainerConfig, *,
    trained_from: int, max_staleness: int,
) -> tuple[float, dict[str, Tensor]]:  # fmt: skip
    """Loss and gradients by parameter name of one mini-batch; `start` has the weights of the step's start."""
    terms: list[Tensor] = []
    for group in groups:
        rewards = [sample.reward or 0.0 for sample in group.samples]
        mean = sum(rewards) / len(rewards)
        deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
        for sample, reward in zip(group.samples, rewards, strict=True):
            advantage = (reward - mean) / (deviation + 1e-4)
            terms += _token_losses(
                model, start, sample, advantage, settings, trained_from=trained_from, max_staleness=max_staleness
            )
    loss = sum(terms[1:], terms[0]) / len(terms)
    model.zero_grad()
    loss.backward()
    return float(loss.detach()), {
        name: value.grad for name, value in model.named_parameters() if value.grad is not None
    }


def _token_losses(
    model: PreTrainedModel, start: PreTrainedModel, sample: Sample, advantage: float, settings: TrainerConfig, *,
    trained_from: int, max_staleness: int,
) -> list[Tensor]:  # fmt: skip
    tokens = torch.tensor(sample.tokens.tolist())
    logits = model(tokens[None]).logits[0] / sample.temperature
    with torch.no_grad():
        start_logits = start(tokens[None]).logits[0] / sample.temperature
    losses, at = [], len(sample.prompt_tokens)
    for part in sample.turns:
        for span in part.spans:
            for place in range(span.start, span.end):
                if trained_from - span.version.step <= max_staleness:
                    before, token = at + place - 1, int(tokens[at + place])
                    probabilities = torch.softmax(logits[before], 0)
                    log_prob = torch.log(probabilities[token])
                    rollout = float(part.log_probs[place])
                    loss = _clipped(torch.exp(log_prob - rollout), advantage, settings)
                    if settings.importance_cap is not None:
                        origin = float(torch.log_softmax(start_logits[before], 0)[token])
                        loss = loss * min(math.exp(origin - rollout), settings.importance_cap)
                    entropy = -(probabilities * torch.log(probabilities)).sum()
                    losses.append(loss - settings.entropy_coefficient * entropy)
        at += part.length
    return losses


def _clipped(ratio: Tensor, advantage: float, settings: TrainerConfig) -> Tensor:
    if advantage >= 0 and float(ratio.detach()) > 1 + settings.clip_high:
        return torch.tensor(-(1 + settings.clip_high) * advantage, dtype=torch.float64)
    if advantage < 0 and float(ratio.detach()) < 1 - settings.clip_low:
        return torch.tensor(-(1 - settings.clip_low) * advantage, dtype=torch.float64)
    return -ratio * advantage
