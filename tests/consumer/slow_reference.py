"""The step's loss once more: one sample and one token at a time, float64, no masks, no padding, no shared code."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from stream_rl.config import TrainerConfig
from stream_rl.sample import Group, Sample


@dataclass
class Token:
    """One generated token that is young enough to be trained."""

    log_prob: Tensor
    entropy: Tensor
    start: float
    reference: float
    rollout: float
    turn: int
    advantage: float = 0.0


@dataclass
class Models:
    """The policy being trained, the one that the step started from, and the reference."""

    policy: PreTrainedModel
    start: PreTrainedModel
    reference: PreTrainedModel | None = None


def load(model_path: Path) -> PreTrainedModel:
    """The model in float64."""
    return AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)


def gradients(
    models: Models, groups: list[Group], settings: TrainerConfig, *, trained_from: int, max_staleness: int
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients by parameter name of one mini-batch."""
    episodes = []
    for group in groups:
        siblings = [_tokens(models, sample, trained_from, max_staleness) for sample in group.samples]
        _credit(group, siblings, settings)
        episodes += siblings
    loss = _aggregate([_sequence_losses(tokens, settings) for tokens in episodes], settings)
    models.policy.zero_grad()
    loss.backward()
    found = {name: value.grad.clone() for name, value in models.policy.named_parameters() if value.grad is not None}
    return float(loss.detach()), found


def _tokens(models: Models, sample: Sample, trained_from: int, max_staleness: int) -> list[Token]:
    ids = torch.tensor(sample.tokens.tolist())
    logits = models.policy(ids[None]).logits[0] / sample.temperature
    with torch.no_grad():
        start = models.start(ids[None]).logits[0] / sample.temperature
        reference = (models.reference or models.start)(ids[None]).logits[0] / sample.temperature
    tokens, at = [], len(sample.prompt_tokens)
    for part in sample.turns:
        for span in part.spans:
            for place in range(span.start, span.end):
                if trained_from - span.version.step <= max_staleness:
                    before, token = at + place - 1, int(ids[at + place])
                    shares = torch.softmax(logits[before], 0)
                    tokens.append(Token(
                        torch.log(shares[token]), -(shares * torch.log(shares)).sum(),
                        math.log(torch.softmax(start[before], 0)[token]),
                        math.log(torch.softmax(reference[before], 0)[token]),
                        float(part.log_probs[place]), part.index,
                    ))  # fmt: skip
        at += part.length
    return tokens


def _credit(group: Group, siblings: list[list[Token]], settings: TrainerConfig) -> None:
    taken = [[settings.kl_coefficient * _divergence(token.rollout, token.reference, settings) for token in tokens]
             if settings.kl_in == "reward" else [0.0] * len(tokens) for tokens in siblings]  # fmt: skip
    if settings.turn_discount is None:
        rewards = [(sample.reward or 0.0) - sum(part) for sample, part in zip(group.samples, taken, strict=True)]
        for tokens, advantage in zip(siblings, _compare(rewards, settings), strict=True):
            for token in tokens:
                token.advantage = advantage
        return
    returns: list[dict[int, float]] = []
    for sample, tokens, part in zip(group.samples, siblings, taken, strict=True):
        own: dict[int, float] = {}
        for record in sample.turns:
            own[record.index] = own.get(record.index, 0.0) + record.reward
        for token, penalty in zip(tokens, part, strict=True):
            own[token.turn] -= penalty
        returns.append({
            turn: sum(settings.turn_discount ** (later - turn) * own[later] for later in own if later >= turn)
            for turn in own
        })  # fmt: skip
    for turn in range(max(map(len, returns))):
        present = [number for number, of_turn in enumerate(returns) if turn in of_turn]
        for number, advantage in zip(present, _compare([returns[n][turn] for n in present], settings), strict=True):
            for token in siblings[number]:
                if token.turn == turn:
                    token.advantage = advantage


def _compare(rewards: list[float], settings: TrainerConfig) -> list[float]:
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    if settings.advantage == "grpo":
        return [(reward - mean) / (deviation + 1e-4) for reward in rewards]
    if settings.advantage == "dr_grpo":
        return [reward - mean for reward in rewards]
    others = len(rewards) - 1
    return [reward - (sum(rewards) - reward) / others if others else 0.0 for reward in rewards]


def _sequence_losses(tokens: list[Token], settings: TrainerConfig) -> list[Tensor]:
    against = [token.rollout if settings.clip_against == "rollout" else token.start for token in tokens]
    ratios = [torch.exp(token.log_prob - other) for token, other in zip(tokens, against, strict=True)]
    if settings.policy_loss == "gspo" and tokens:
        # Each token's surrogate has the sequence's ratio; the gradient is its own share of that of the log-probs' sum.
        whole = math.exp(sum(math.log(float(ratio.detach())) for ratio in ratios) / len(ratios))
        ratios = [whole * ratio / ratio.detach() for ratio in ratios]
    product = math.exp(sum(token.start - token.rollout for token in tokens))
    losses = []
    for token, ratio in zip(tokens, ratios, strict=True):
        loss = _weight(token, product, settings) * _clipped(ratio, token.advantage, settings)
        if settings.kl_in != "reward" and settings.kl_coefficient:
            divergence = _divergence(token.log_prob, token.reference, settings)
            if settings.kl_in == "weighted_loss":
                divergence = divergence * torch.exp(token.log_prob) / math.exp(token.rollout)
            loss = loss + settings.kl_coefficient * divergence
        losses.append(loss - settings.entropy_coefficient * token.entropy)
    return losses


def _weight(token: Token, product: float, settings: TrainerConfig) -> float:
    ratio, floor, cap = math.exp(token.start - token.rollout), settings.importance_floor, settings.importance_cap
    judged = product if settings.correction == "sequence_mask" else ratio
    if settings.correction == "none":
        return 1.0
    assert cap is not None
    if settings.correction == "truncated":
        return min(ratio, cap)
    if judged > cap or (floor is not None and judged < floor):
        return 0.0
    return judged if settings.clip_against == "start" else 1.0


def _divergence(log_prob, reference, settings: TrainerConfig):  # type: ignore[no-untyped-def]
    difference = log_prob - reference
    if settings.kl_estimator == "k1":
        return difference
    if settings.kl_estimator == "k2":
        return 0.5 * difference**2
    return math.e ** (-difference) - 1 + difference


def _clipped(ratio: Tensor, advantage: float, settings: TrainerConfig) -> Tensor:
    if advantage >= 0 and float(ratio.detach()) > 1 + settings.clip_high:
        return torch.tensor(-(1 + settings.clip_high) * advantage, dtype=torch.float64)
    if advantage < 0 and float(ratio.detach()) < 1 - settings.clip_low:
        return torch.tensor(-(1 - settings.clip_low) * advantage, dtype=torch.float64)
    return -ratio * advantage


def _aggregate(sequences: list[list[Tensor]], settings: TrainerConfig) -> Tensor:
    trained = [losses for losses in sequences if losses]
    if settings.aggregation == "token_mean":
        return sum(map(sum, trained)) / sum(map(len, trained))  # type: ignore[arg-type, return-value]
    if settings.aggregation == "sequence_mean":
        return sum(sum(losses) / len(losses) for losses in trained) / len(trained)  # type: ignore[return-value]
    assert settings.aggregation_length is not None
    return sum(sum(losses) for losses in trained) / (settings.aggregation_length * len(sequences))  # type: ignore[return-value]
