"""Losses as pure functions of tensors, one value per trained token. (k,) is the number of trained tokens.

Whoever sums them divides by the token count of the whole mini-batch, over all ranks: a token weighs the same whatever
sample, micro-batch or rank it is in.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class PolicyLoss(NamedTuple):
    """Per trained token: the loss (k,), the ratio to the rollout policy (k,) and whether the clip took hold (k,)."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


def log_probs_and_entropy(logits: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets, and the entropy of what they were sampled from: softmax(logits / temperature).

    Args:
        logits: (k, vocabulary), any float dtype; the arithmetic is in float32 (float64 stays float64).
        targets: int64 (k,).
        temperatures: (k,), the sampling temperature recorded with each token's sample.

    Returns:
        Two tensors (k,): log-probs and entropies, in nats.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    distribution = torch.log_softmax(wide / temperatures.unsqueeze(-1), dim=-1)
    return -functional.nll_loss(distribution, targets, reduction="none"), -(distribution.exp() * distribution).sum(-1)


def ppo_clip(
    log_probs: Tensor, rollout_log_probs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> PolicyLoss:
    """PPO's clipped surrogate against the policy that wrote the token: the engine's recorded log-probs.

    Args:
        log_probs: (k,) of the policy being trained.
        rollout_log_probs: (k,) recorded when the tokens were sampled, by whatever weight version wrote each.
        advantages: (k,).
        clip_low, clip_high: the ratio is held in [1 - clip_low, 1 + clip_high] where that lowers the objective.

    Source: Schulman et al. 2017, "Proximal Policy Optimization", equation 7; bounds that differ as in Yu et al. 2025,
    "DAPO", section 3.1.
    """
    ratio = torch.exp(log_probs - rollout_log_probs)
    free = ratio * advantages
    held = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return PolicyLoss(-torch.minimum(free, held), ratio.detach(), (held < free).detach())


def truncated_importance(start_log_probs: Tensor, rollout_log_probs: Tensor, cap: float) -> Tensor:
    """Weights min(pi_start / pi_rollout, cap) (k,), without gradient.

    Args:
        start_log_probs: (k,) under the weights that the step started from.
        rollout_log_probs: (k,) as recorded.
        cap: the largest weight.

    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training".
    """
    return torch.exp(start_log_probs - rollout_log_probs).clamp(max=cap).detach()
