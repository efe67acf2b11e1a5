"""What a step's updates were like: sums over tokens, told apart by the tokens' lag, and the figures they give.

Sums add up over micro-batches and ranks; only at the end do they become means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from stream_rl.consumer.batching import LAG_BUCKETS, Floats
from stream_rl.consumer.loss import kl_divergence
from stream_rl.consumer.micro_batch import MicroBatch
from stream_rl.consumer.objective import TokenLosses

__all__ = ["UpdateFigures", "no_sums", "token_sums", "update_figures"]

TOKEN_COLUMNS = (
    "tokens", "loss", "entropy", "ratio", "ratio_squared", "clipped", "bounded", "difference", "kl", "reference_kl",
)  # fmt: skip
"""Summed per bucket of lags; `loss` as it counts in the mini-batch, times the mini-batch's tokens."""


class LagFigures(TypedDict):
    """Of the trained tokens of one bucket of lags; see `UpdateFigures`."""

    tokens: int
    ratio_mean: float
    clip_share: float
    engine_trainer_kl: float
    effective_sample_size: float


@dataclass(frozen=True, slots=True)
class UpdateFigures:
    """Of the trained tokens of a step, all ranks together; NaN where there was no such token.

    loss                     mean of the mini-batches' losses, weighted by their tokens
    grad_norm                mean over the updates, before clipping
    entropy                  mean, nats
    ratio_mean               mean of pi / pi_rollout, whatever the clip is against
    clip_share               share of tokens whose ratio the clip held
    correction_share         share of tokens whose importance weight was cut or dropped
    effective_sample_size    (sum r)^2 / (n * sum r^2) of r = pi / pi_rollout: 1 when all tokens weigh the same
    engine_trainer_kl        KL(engine || trainer) per token, estimated by k3, nats
    log_prob_difference      mean |engine - trainer|, nats, over tokens of the newest version
    log_prob_difference_all  the same over all tokens
    reference_kl             mean of the estimate that the settings name; NaN without a reference
    by_lag                   some of these by the token's lag; buckets without tokens are left out

    The last figures of engine and trainer (the divergence and the two differences) are of the first mini-batch: the
    others are trained with weights that its update has already changed.
    """

    loss: float
    grad_norm: float
    entropy: float
    ratio_mean: float
    clip_share: float
    correction_share: float
    effective_sample_size: float
    engine_trainer_kl: float
    log_prob_difference: float
    log_prob_difference_all: float
    reference_kl: float
    by_lag: dict[str, LagFigures]


def no_sums(device: torch.device) -> Tensor:
    """Sums of nothing: float64 (buckets, columns)."""
    return torch.zeros(len(LAG_BUCKETS), len(TOKEN_COLUMNS), dtype=torch.float64, device=device)


@torch.no_grad()
def token_sums(
    batch: MicroBatch, losses: TokenLosses, log_probs: Tensor, entropy: Tensor, loss_shares: Tensor
) -> Tensor:
    """A micro-batch's sums: float64 (buckets, columns).

    Args:
        losses: of the batch's k tokens.
        log_probs, entropy: (k,) of the policy.
        loss_shares: (k,) or (), what the losses are multiplied by.
    """
    log_ratio = log_probs - batch.rollout_log_probs
    ratio = torch.exp(log_ratio)
    kl = kl_divergence(batch.rollout_log_probs, log_probs, "k3")
    columns = (
        torch.ones_like(ratio), losses.loss * loss_shares, entropy, ratio, ratio.square(), losses.clipped,
        losses.bounded, log_ratio.abs(), kl, losses.reference_kl.expand_as(ratio),
    )  # fmt: skip
    values = torch.stack(columns, dim=1)
    return no_sums(values.device).index_add_(0, batch.buckets, values.to(torch.float64))


def update_figures(total: Floats, first: Floats, grad_norm: float) -> UpdateFigures:
    """The figures of a step from its sums.

    Args:
        total: float64 (buckets, columns) over all mini-batches and ranks.
        first: of the first mini-batch alone.
        grad_norm: as it stands in the figures.
    """
    step, start, newest = _named(total.sum(axis=0)), _named(first.sum(axis=0)), _named(first[0])
    return UpdateFigures(
        loss=_mean(step, "loss"),
        grad_norm=grad_norm,
        entropy=_mean(step, "entropy"),
        ratio_mean=_mean(step, "ratio"),
        clip_share=_mean(step, "clipped"),
        correction_share=_mean(step, "bounded"),
        effective_sample_size=_effective_sample_size(step),
        engine_trainer_kl=_mean(start, "kl"),
        log_prob_difference=_mean(newest, "difference"),
        log_prob_difference_all=_mean(start, "difference"),
        reference_kl=_mean(step, "reference_kl"),
        by_lag={
            name: _of_bucket(_named(whole), _named(part))
            for name, whole, part in zip(LAG_BUCKETS, total, first, strict=True)
            if whole[0]
        },
    )


def _of_bucket(step: dict[str, float], start: dict[str, float]) -> LagFigures:
    return LagFigures(
        tokens=int(step["tokens"]),
        ratio_mean=_mean(step, "ratio"),
        clip_share=_mean(step, "clipped"),
        engine_trainer_kl=_mean(start, "kl"),
        effective_sample_size=_effective_sample_size(step),
    )


def _named(sums: Floats) -> dict[str, float]:
    return dict(zip(TOKEN_COLUMNS, sums.tolist(), strict=True))


def _mean(sums: dict[str, float], column: str) -> float:
    return sums[column] / sums["tokens"] if sums["tokens"] else float("nan")


def _effective_sample_size(sums: dict[str, float]) -> float:
    return sums["ratio"] ** 2 / (sums["tokens"] * sums["ratio_squared"]) if sums["ratio_squared"] else float("nan")
