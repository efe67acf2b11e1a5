"""One training step's optimizer updates, exact to the global counts.

The loss of a mini-batch is a weighted sum over all its trained tokens on all ranks, whose weights follow from counts of
the whole mini-batch. Each micro-batch contributes its part; FSDP averages gradients over ranks, so a part is scaled up
by the number of ranks first. What comes out is the same for every division into ranks and micro-batches, up to the
order of additions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from stream_rl.config import TrainerConfig
from stream_rl.consumer.advantage import token_advantages
from stream_rl.consumer.batching import Samples
from stream_rl.consumer.collectives import all_max, all_sum
from stream_rl.consumer.learning_rate import learning_rate
from stream_rl.consumer.loss import kl_divergence
from stream_rl.consumer.micro_batch import MicroBatch, empty_micro_batch, level_passes, micro_batches, plan_passes
from stream_rl.consumer.model import Policy, log_probs_alone
from stream_rl.consumer.objective import LossCounts, token_losses, token_shares
from stream_rl.consumer.update_figures import UpdateFigures, no_sums, token_sums, update_figures
from stream_rl.errors import TrainingError
from stream_rl.metrics.run_folder import TRAIN_PARTS
from stream_rl.stopwatch import timed

__all__ = ["UpdateFigures", "Updater"]


class Updater:
    """The optimizer and the algorithm's settings around a policy.

    Args:
        policy: what is trained.
        settings: the algorithm.
        device: where the policy is.
        reference: what the policy must stay near to; needed exactly when `kl_coefficient` is above 0.
    """

    def __init__(
        self, policy: Policy, settings: TrainerConfig, device: torch.device, reference: Policy | None = None
    ) -> None:
        assert (reference is not None) == (settings.kl_coefficient > 0)
        self.policy = policy
        if reference is not None and reference.packed != policy.packed:
            # Both see the same micro-batches.
            for model in (policy, reference):
                model.pad()
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in policy.parameters() if parameter.requires_grad],
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.settings = settings
        self.seconds = dict.fromkeys(TRAIN_PARTS, 0.0)
        """What the last step's parts took."""
        self._device = device
        self._reference = reference

    def step(self, mini_batches: Sequence[Samples], step: int) -> UpdateFigures:
        """Makes one optimizer update per mini-batch. A collective.

        Args:
            mini_batches: this rank's samples of each; may hold none.
            step: the step's number, from 1: sets the learning rate.

        Raises:
            TrainingError: an update would have made the weights NaN, and was not made.
        """
        settings = self.settings
        for group in self.optimizer.param_groups:  # a checkpoint brings those of the settings that it was written under
            group.update(lr=learning_rate(settings, step), betas=settings.betas, weight_decay=settings.weight_decay)
        counts = [LossCounts(*row) for row in all_sum([samples.loss_counts() for samples in mini_batches])]
        self.seconds = dict.fromkeys(TRAIN_PARTS, 0.0)
        with timed(self.seconds, "pack"):
            passes = self._passes(mini_batches)
        references = self._log_probs(self._reference, passes)
        if self.settings.kl_in == "reward":
            passes = [self._penalised(*parts) for parts in zip(mini_batches, passes, references, strict=True)]
        # With a single mini-batch the policy of its only update is the one that the step starts from.
        needs_start = self.settings.correction != "none" and len(passes) > 1
        starts = self._log_probs(self.policy if needs_start else None, passes)
        sums = first = no_sums(self._device)
        norms = []
        for number, count in enumerate(counts):
            with timed(self.seconds, "forward_backward"):
                for parts in zip(passes[number], starts[number], references[number], strict=True):
                    sums = sums + self._accumulate(*parts, count)
                if self._device.type == "cuda":
                    torch.cuda.synchronize(self._device)
            with timed(self.seconds, "optimizer"):
                norms.append(self._apply(step))
            first = sums if number == 0 else first
        total, of_first = all_sum(torch.stack([sums, first]).tolist())
        return update_figures(total, of_first, sum(norms) / len(norms))

    def _passes(self, mini_batches: Sequence[Samples]) -> list[list[MicroBatch]]:
        most, packed = self.settings.max_tokens_per_micro_batch, self.policy.packed
        plans = [plan_passes(samples.lengths, most, packed=packed) for samples in mini_batches]
        counts = all_max([max(1, len(plan)) for plan in plans])
        passes = []
        for samples, plan, count in zip(mini_batches, plans, counts.astype(int).tolist(), strict=True):
            level = level_passes(plan, samples.lengths, most, count) if packed else plan
            batches = micro_batches(samples, token_advantages(samples, self.settings), level, packed=packed)
            batches += [empty_micro_batch() for _ in range(count - len(batches))]
            passes.append([batch.to(self._device) for batch in batches])
        return passes

    def _log_probs(self, model: Policy | None, passes: list[list[MicroBatch]]) -> Sequence[Sequence[Tensor | None]]:
        if model is None:
            return [[None] * len(batches) for batches in passes]
        return [log_probs_alone(model, batches) for batches in passes]

    def _penalised(
        self, samples: Samples, batches: list[MicroBatch], references: Sequence[Tensor | None]
    ) -> list[MicroBatch]:
        # The rewards are of what the rollout policy did: its divergence is what is taken from them.
        settings = self.settings
        penalties = np.zeros(len(samples.tokens))
        for batch, reference in zip(batches, references, strict=True):
            assert reference is not None
            kl = kl_divergence(batch.rollout_log_probs, reference, settings.kl_estimator)
            penalties[batch.places.cpu().numpy()] = settings.kl_coefficient * kl.cpu().numpy()
        advantages = torch.from_numpy(token_advantages(samples, settings, penalties)).to(self._device)
        return [replace(batch, advantages=advantages[batch.places]) for batch in batches]

    def _accumulate(
        self, batch: MicroBatch, start: Tensor | None, reference: Tensor | None, counts: LossCounts
    ) -> Tensor:
        log_probs, entropy = self.policy(batch)
        start = log_probs.detach() if start is None else start
        losses = token_losses(log_probs, entropy, batch, self.settings, start=start, reference=reference)
        shares = token_shares(batch, counts, self.settings)
        torch.autograd.backward((losses.loss * shares).sum() * dist.get_world_size())
        return token_sums(batch, losses, log_probs, entropy, shares * counts.tokens)

    def _apply(self, step: int) -> float:
        whole = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.settings.max_grad_norm)
        norm = float(whole.full_tensor() if isinstance(whole, DTensor) else whole)
        if not math.isfinite(norm):
            raise TrainingError(
                f"step {step} would make the weights NaN, its gradient's norm is {norm}: go on from the checkpoint "
                "before it with --resume and a lower trainer.learning_rate, or with trainer.correction"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm
