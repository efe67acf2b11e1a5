"""Losses as pure functions of tensors, one value per trained token. (k,) is the number of trained tokens.

What sums them weighs each by its share of the whole mini-batch, over all ranks: what a token counts does not depend on
the micro-batch and the rank that it is in.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stream_rl.config_trainer import KlEstimator

__all__ = ["PolicyLoss", "gspo", "kl_divergence", "ppo_clip", "row_sums"]


class PolicyLoss(NamedTuple):
    """Per trained token: the loss (k,) and whether the clip took hold (k,)."""

    loss: Tensor
    clipped: Tensor


def ppo_clip(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> PolicyLoss:
    """PPO's clipped surrogate, each token by its own ratio.

    Args:
        log_probs: (k,) of the policy being trained.
        old_log_probs: (k,) of the policy that the ratio is to: the one that wrote each token, as the engine recorded
            it, or the one that the step started from (decoupled PPO).
        advantages: (k,).
        clip_low, clip_high: the ratio is held in [1 - clip_low, 1 + clip_high] where that lowers the objective.

    Source: Schulman et al. 2017, "Proximal Policy Optimization", equation 7; bounds that differ as in Yu et al. 2025,
    "DAPO", section 3.1; decoupled as in Hilton et al. 2022, "Batch size-invariance for policy optimization".
    """
    return _clipped(torch.exp(log_probs - old_log_probs), advantages, clip_low, clip_high)


def gspo(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, rows: Tensor, row_counts: Tensor, *,
    clip_low: float, clip_high: float,
) -> PolicyLoss:  # fmt: skip
    """The clipped surrogate with one ratio for a sequence: the geometric mean of its trained tokens' ratios.

    The form in which every token carries the sequence's ratio and its own gradient ("GSPO-token"): with one advantage a
    sequence, and sequences' means as aggregation, loss and gradient are those of GSPO itself.

    Args:
        log_probs, old_log_probs, advantages: (k,), as for `ppo_clip`.
        rows: int64 (k,), the sequence of each token.
        row_counts: (b,), how many of the k tokens each sequence has.

    Source: Zheng et al. 2025, "Group sequence policy optimization", equations 5 and 13.
    """
    differences = (log_probs - old_log_probs).detach()
    sequence = row_sums(differences, rows, len(row_counts)) / row_counts.clamp(min=1.0)
    ratio = torch.exp(sequence[rows] + log_probs - log_probs.detach())
    return _clipped(ratio, advantages, clip_low, clip_high)


def kl_divergence(log_probs: Tensor, reference_log_probs: Tensor, estimator: KlEstimator) -> Tensor:
    """An estimate per token (k,) of KL(policy || reference), from tokens that the policy sampled, in nats.

    Args:
        log_probs: (k,) of the policy.
        reference_log_probs: (k,).
        estimator: k1 is unbiased and may be negative; k2 is half its square, whose gradient is that of the divergence;
            k3 is unbiased and never negative.

    Source: Schulman 2020, "Approximating KL divergence"; for k3 in GRPO's loss Shao et al. 2024, "DeepSeekMath",
    equation 4; for what the gradients are Tang and Munos 2025, "On a few pitfalls in KL divergence gradient estimation
    for RL".
    """
    difference = reference_log_probs - log_probs
    match estimator:
        case "k1":
            return -difference
        case "k2":
            return difference.square() / 2.0
        case "k3":
            return torch.expm1(difference) - difference


def row_sums(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """Sums (k,) values over the rows that they are in: (count,)."""
    return values.new_zeros(count).index_add_(0, rows, values)


def _clipped(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> PolicyLoss:
    free = ratio * advantages
    held = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return PolicyLoss(-torch.minimum(free, held), (held < free).detach())
