"""Off-policy correction: weights from the policy that wrote a token to the one that the step starts from.

A step's tokens were written by several versions, and by an engine whose arithmetic is not the trainer's. What the
engine recorded when it wrote a token stands for both. With r = pi_start / pi_rollout,

    gradient  ~  r  *  (pi / pi_start)  *  advantage          r bounded here, the other ratio by the policy loss's clip

so that r enters exactly once: as a weight where the clip is against the step's start, within the clipped ratio itself
where that is against the rollout policy; then a correction only drops tokens. A dropped token still counts where the
loss is divided: what is left is not weighted up.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stream_rl.config import TrainerConfig
from stream_rl.consumer.loss import row_sums

__all__ = ["Importance", "importance"]


class Importance(NamedTuple):
    """Per trained token: the weight (k,), without gradient, and whether a bound took hold (k,)."""

    weights: Tensor
    bounded: Tensor


def truncated(ratio: Tensor, cap: float) -> Importance:
    """Truncated importance sampling: min(r, cap), token by token.

    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; Ionides 2008.
    """
    return Importance(ratio.clamp(max=cap), ratio > cap)


def masked(ratio: Tensor, floor: float, cap: float) -> Importance:
    """r where it is within [floor, cap], 0 elsewhere.

    Token by token for `ratio` of tokens (IcePop); with each token's `sequence_ratio` whole sequences are dropped
    (masked importance sampling).

    Source: Ling team 2025, "Every step evolves" (Ring-1T), section on IcePop; Liu et al. 2025, "When speed kills
    stability: demystifying RL collapse from the training-inference mismatch".
    """
    inside = (ratio >= floor) & (ratio <= cap)
    return Importance(torch.where(inside, ratio, 0.0), ~inside)


def sequence_ratio(log_ratio: Tensor, rows: Tensor, count: int) -> Tensor:
    """The product of the ratios of a sequence's trained tokens, at each of its tokens: (k,) from log-ratios (k,)."""
    return torch.exp(row_sums(log_ratio, rows, count))[rows]


@torch.no_grad()
def importance(
    start_log_probs: Tensor, rollout_log_probs: Tensor, rows: Tensor, count: int, settings: TrainerConfig
) -> Importance:
    """The weights of the policy loss, as the settings say.

    Args:
        start_log_probs: (k,) under the weights that the step started from.
        rollout_log_probs: (k,) as recorded, each by the version that wrote the token.
        rows: int64 (k,), the sequence of each token; count of them.
        settings: `correction`, its bounds, and `clip_against`.
    """
    cap = float("inf") if settings.importance_cap is None else settings.importance_cap
    log_ratio = start_log_probs - rollout_log_probs
    match settings.correction:
        case "none":
            return Importance(torch.ones_like(log_ratio), torch.zeros_like(log_ratio, dtype=torch.bool))
        case "truncated":
            found = truncated(torch.exp(log_ratio), cap)
        case "icepop":
            found = masked(torch.exp(log_ratio), settings.importance_floor or 0.0, cap)
        case "sequence_mask":
            found = masked(sequence_ratio(log_ratio, rows, count), settings.importance_floor or 0.0, cap)
    if settings.clip_against == "rollout":
        return Importance((~found.bounded).to(log_ratio.dtype), found.bounded)
    return found
