"""The objective: what the settings make of a micro-batch's log-probs. Pure functions; (k,) is its trained tokens.

loss of a token  =  importance weight * policy loss  +  kl_coefficient * KL  -  entropy_coefficient * entropy
loss of a mini-batch  =  sum over its tokens of  share * loss of the token

Weighted by pi / pi_rollout, through which the gradient goes as well, the KL's estimate and its gradient are unbiased
whatever policy wrote the token (DeepSeek-AI 2025, "DeepSeek-V3.2", section 3.1).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stream_rl.config import TrainerConfig
from stream_rl.consumer.importance import importance
from stream_rl.consumer.loss import PolicyLoss, gspo, kl_divergence, ppo_clip
from stream_rl.consumer.micro_batch import MicroBatch

__all__ = ["LossCounts", "TokenLosses", "token_losses", "token_shares"]


class LossCounts(NamedTuple):
    """What a mini-batch has, all ranks together: tokens that carry loss, samples with such tokens, samples."""

    tokens: float
    sequences: float
    samples: float


class TokenLosses(NamedTuple):
    """Per trained token: the loss (k,), whether the clip took hold (k,), whether the correction did (k,), and the
    divergence from the reference (k,), or NaN () without one.
    """

    loss: Tensor
    clipped: Tensor
    bounded: Tensor
    reference_kl: Tensor


def token_losses(
    log_probs: Tensor, entropy: Tensor, batch: MicroBatch, settings: TrainerConfig, *,
    start: Tensor, reference: Tensor | None,
) -> TokenLosses:  # fmt: skip
    """The loss of each trained token; nothing else has one.

    Args:
        log_probs, entropy: (k,) of the policy being trained.
        batch: the tokens' advantages, recorded log-probs and sequences.
        settings: the algorithm.
        start: (k,) log-probs under the weights that the step started from, without gradient.
        reference: (k,) log-probs of the reference model; None without one.
    """
    old = batch.rollout_log_probs if settings.clip_against == "rollout" else start
    loss, clipped = _policy_loss(log_probs, old, batch, settings)
    bounded = torch.zeros_like(clipped)
    if settings.correction != "none":
        weights, bounded = importance(start, batch.rollout_log_probs, batch.rows, len(batch.row_counts), settings)
        loss = loss * weights
    kl = log_probs.new_tensor(float("nan"))
    if reference is not None:
        kl = kl_divergence(log_probs, reference, settings.kl_estimator)
        if settings.kl_in != "reward":
            weighted = torch.exp(log_probs - batch.rollout_log_probs) * kl if settings.kl_in == "weighted_loss" else kl
            loss = loss + settings.kl_coefficient * weighted
    return TokenLosses(loss - settings.entropy_coefficient * entropy, clipped, bounded, kl)


def token_shares(batch: MicroBatch, counts: LossCounts, settings: TrainerConfig) -> Tensor:
    """By how much each trained token's loss counts in its mini-batch's: (k,), or () where it is the same for all.

    Args:
        batch: says which tokens are one sequence's.
        counts: of the whole mini-batch, over all ranks.
        settings: `aggregation`:
            token_mean     1 / tokens (Yu et al. 2025, "DAPO", section 3.3)
            sequence_mean  1 / (tokens of its sequence * sequences) (Shao et al. 2024, "DeepSeekMath", equation 3)
            constant       1 / (aggregation_length * samples), without a bias by length (Liu et al. 2025, "Understanding
                           R1-Zero-like training", section 3.2)
    """
    lengths = batch.row_counts
    match settings.aggregation:
        case "token_mean":
            return lengths.new_tensor(1.0 / max(counts.tokens, 1.0))
        case "sequence_mean":
            return 1.0 / (lengths[batch.rows] * counts.sequences)
        case "constant":
            assert settings.aggregation_length is not None
            return lengths.new_tensor(1.0 / (settings.aggregation_length * max(counts.samples, 1.0)))


def _policy_loss(log_probs: Tensor, old: Tensor, batch: MicroBatch, settings: TrainerConfig) -> PolicyLoss:
    low, high = settings.clip_low, settings.clip_high
    if settings.policy_loss == "gspo":
        return gspo(log_probs, old, batch.advantages, batch.rows, batch.row_counts, clip_low=low, clip_high=high)
    return ppo_clip(log_probs, old, batch.advantages, clip_low=low, clip_high=high)
