"""One training step's optimizer updates, exact to the global token count.

The loss of a mini-batch is the mean over all its trained tokens on all ranks. Each micro-batch contributes its sum over
that count; FSDP averages gradients over ranks, so the sum is scaled up by the number of ranks first. What comes out is
the same for every division into ranks and micro-batches, up to the order of additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from stream_rl.config import TrainerConfig
from stream_rl.consumer.batching import MicroBatch, Samples, empty_micro_batch, micro_batches
from stream_rl.consumer.collectives import all_max, all_sum
from stream_rl.consumer.learning_rate import learning_rate
from stream_rl.consumer.loss import ppo_clip, truncated_importance
from stream_rl.consumer.model import Policy


@dataclass(frozen=True, slots=True)
class UpdateFigures:
    """Means over the trained tokens of a step, all ranks together; NaN where there was no such token.

    The two log-prob differences, mean |engine - trainer|, are of the first mini-batch: the others are trained with
    weights that its update has already changed.
    """

    loss: float
    grad_norm: float
    entropy: float
    ratio_mean: float
    clip_share: float
    log_prob_difference: float
    log_prob_difference_all: float


class Updater:
    """The optimizer and the algorithm's settings around a policy."""

    def __init__(self, policy: Policy, settings: TrainerConfig, device: torch.device) -> None:
        self.policy = policy
        self.optimizer = torch.optim.AdamW(
            policy.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.settings = settings
        self._device = device

    def step(self, mini_batches: Sequence[Samples], step: int) -> UpdateFigures:
        """Makes one optimizer update per mini-batch. A collective.

        Args:
            mini_batches: this rank's samples of each; may hold none.
            step: the step's number, from 1: sets the learning rate.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.settings, step)
        passes = self._passes(mini_batches)
        tokens = all_sum([sum(len(batch.targets) for batch in batches) for batches in passes])
        starts = self._start_log_probs(passes)
        sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=self._device)
        first = sums
        norms = []
        for number, (batches, count) in enumerate(zip(passes, tokens, strict=True)):
            for batch, start in zip(batches, starts[number], strict=True):
                sums = sums + self._accumulate(batch, start, float(count))
            norms.append(self._apply())
            first = sums if number == 0 else first
        return _figures(all_sum(sums.tolist()).tolist(), all_sum(first.tolist()).tolist(), sum(norms) / len(norms))

    def _passes(self, mini_batches: Sequence[Samples]) -> list[list[MicroBatch]]:
        passes = [micro_batches(samples, self.settings.max_tokens_per_micro_batch) for samples in mini_batches]
        counts = all_max([max(1, len(batches)) for batches in passes])
        for batches, count in zip(passes, counts, strict=True):
            batches.extend(empty_micro_batch() for _ in range(int(count) - len(batches)))
        return [[batch.to(self._device) for batch in batches] for batches in passes]

    @torch.no_grad()
    def _start_log_probs(self, passes: list[list[MicroBatch]]) -> list[list[Tensor | None]]:
        # With a single mini-batch the policy of its only update is the one that the step starts from.
        if self.settings.importance_cap is None or len(passes) == 1:
            return [[None] * len(batches) for batches in passes]
        return [[self.policy(batch)[0] for batch in batches] for batches in passes]

    def _accumulate(self, batch: MicroBatch, start: Tensor | None, tokens: float) -> Tensor:
        settings = self.settings
        log_probs, entropy = self.policy(batch)
        rollout = batch.rollout_log_probs
        result = ppo_clip(
            log_probs, rollout, batch.advantages, clip_low=settings.clip_low, clip_high=settings.clip_high
        )
        loss = result.loss
        if settings.importance_cap is not None:
            origin = log_probs.detach() if start is None else start
            loss = loss * truncated_importance(origin, rollout, settings.importance_cap)
        loss = loss - settings.entropy_coefficient * entropy
        (loss.sum() * (dist.get_world_size() / max(tokens, 1.0))).backward()
        with torch.no_grad():
            difference = (log_probs - rollout).abs()
            columns = (loss, entropy, result.ratio, result.clipped, difference, difference * batch.newest, batch.newest)
            sums = [column.sum(dtype=torch.float64) for column in columns]
            return torch.stack([*sums, sums[0].new_tensor(float(len(log_probs)))])

    def _apply(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


_SUMS = ("loss", "entropy", "ratio", "clipped", "difference", "difference_newest", "newest", "tokens")


def _figures(total: Sequence[float], first: Sequence[float], grad_norm: float) -> UpdateFigures:
    step, start = dict(zip(_SUMS, total, strict=True)), dict(zip(_SUMS, first, strict=True))
    return UpdateFigures(
        loss=_mean(step["loss"], step["tokens"]),
        grad_norm=grad_norm,
        entropy=_mean(step["entropy"], step["tokens"]),
        ratio_mean=_mean(step["ratio"], step["tokens"]),
        clip_share=_mean(step["clipped"], step["tokens"]),
        log_prob_difference=_mean(start["difference_newest"], start["newest"]),
        log_prob_difference_all=_mean(start["difference"], start["tokens"]),
    )


def _mean(total: float, count: float) -> float:
    return float(total / count) if count else float("nan")
