"""One log-prob on which an engine must agree with the trainer after an update: a sign that all weights arrived.

An engine takes unknown and missing names in silence, and a version is only a name: what it computes says more. A short
line of tokens is enough, since every weight but a few rows of the embedding takes part in it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stream_rl.consumer.micro_batch import MicroBatch
from stream_rl.consumer.model import Policy, log_probs_alone
from stream_rl.sample import Int32

__all__ = ["Probe"]

LENGTH = 8
TOLERANCE = {"float32": 0.01, "bfloat16": 0.3, "float16": 0.1}
"""By the engines' dtype: what kernels may differ by, many times over; without its weights an engine is off by units."""


class Probe:
    """The trainer's side of it. Every rank has one.

    Args:
        policy: what the weights are taken from.
        device: where it computes.
        dtype: what the engines compute in.
    """

    def __init__(self, policy: Policy, device: torch.device, dtype: str) -> None:
        seen = frozenset(policy.sight.family.forbidden) if policy.sight is not None else frozenset()
        vocabulary = policy.language_model.config.get_text_config().vocab_size
        self.tokens: Int32 = np.array([token for token in range(1, vocabulary) if token not in seen][:LENGTH], np.int32)
        self.tolerance = TOLERANCE[dtype]
        self._policy = policy
        self._batch = _of_last(torch.from_numpy(self.tokens).long()).to(device)

    def log_prob(self) -> float:
        """The policy's log-prob of the last token, given those before it. A collective."""
        (found,) = log_probs_alone(self._policy, [self._batch])
        return float(found)


def _of_last(tokens: Tensor) -> MicroBatch:
    """A pass of one sequence whose last token alone is predicted."""
    count = len(tokens)
    one, zero = torch.ones(1), torch.zeros(1, dtype=torch.int64)
    return MicroBatch(
        tokens=tokens.unsqueeze(0), positions=torch.arange(count).unsqueeze(0), lengths=(count,),
        predictors=torch.tensor([count - 2]), targets=tokens[-1:], rollout_log_probs=0 * one, advantages=0 * one,
        temperatures=one, rows=zero, row_counts=one, buckets=zero, places=zero,
    )  # fmt: skip
