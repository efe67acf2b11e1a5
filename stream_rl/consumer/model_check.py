"""What a loaded model is asked before it is trained: whether its log-probs are right, and whether it can be packed.

A few short sequences of arbitrary tokens, on all ranks alike. What a class says of itself is not enough: a model that
scales its logits in a way of its own, or lets something other than attention reach from one sequence to the next, gives
other numbers here.
"""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import Tensor

from stream_rl.consumer.attention import why_not_packed
from stream_rl.consumer.batching import Samples
from stream_rl.consumer.collectives import all_max
from stream_rl.consumer.micro_batch import MicroBatch, micro_batches, plan_passes
from stream_rl.consumer.model import Policy
from stream_rl.consumer.vision import NOT_SHOWN
from stream_rl.errors import AttentionUnsupported, ModelError

__all__ = ["check_log_probs", "settle_packing"]

logger = logging.getLogger(__name__)

LENGTHS = (7, 5, 4, 2)
ROUNDING = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Nats by which two ways to the same log-probs may differ in the mean, by what is computed in."""


def check_log_probs(policy: Policy, dtype: torch.dtype, device: torch.device) -> None:
    """Compares log-probs of the chunked head with those of the model's own logits. A collective.

    Raises:
        ModelError: the model does something to its logits that is not known here.
    """
    batch = _trial(policy, packed=False).to(device)
    with torch.no_grad():
        difference = _difference(policy(batch)[0], policy(batch, own_logits=True)[0])
    if difference > ROUNDING[dtype]:
        name = type(policy.language_model).__name__
        raise ModelError(
            f"{name} changes its logits in an unknown way: log-probs would be off by {difference:.3g} nats"
        )


def settle_packing(policy: Policy, dtype: torch.dtype, device: torch.device, *, wanted: bool) -> str | None:
    """Lets the policy take packed micro-batches if it gives the same log-probs for them. A collective.

    Args:
        policy: takes padded ones so far.
        wanted: False leaves it at that.

    Returns:
        Why it is padded, which is logged as well; None when it is packed.
    """
    reason = why_not_packed(policy.language_model) if wanted else "trainer.packing=false"
    if reason is None:
        reason = _try_packed(policy, dtype, device)
    if reason is not None:
        policy.pad()
        if wanted:
            logger.warning("samples are padded, not packed: %s", reason)
    return reason


@torch.no_grad()
def _try_packed(policy: Policy, dtype: torch.dtype, device: torch.device) -> str | None:
    padded, packed = (_trial(policy, packed=packed).to(device) for packed in (False, True))
    expected = policy(padded)[0]
    try:
        policy.pack(dtype, device)
        found = policy(packed)[0]
    except AttentionUnsupported as error:
        return str(error)
    difference = _difference(found[packed.places.argsort()], expected[padded.places.argsort()])
    return None if difference <= ROUNDING[dtype] else f"log-probs differ by {difference:.3g} nats when it is"


def _difference(found: Tensor, expected: Tensor) -> float:
    return float(all_max([float((found - expected).abs().mean())])[0])


def _trial(policy: Policy, *, packed: bool) -> MicroBatch:
    lengths, count = np.array(LENGTHS), sum(LENGTHS)
    vocabulary = policy.language_model.config.get_text_config().vocab_size
    generated = np.arange(count) != np.repeat(np.cumsum(lengths) - lengths, lengths)
    tokens = (np.arange(count) * 7919 + 11) % vocabulary
    if policy.sight is not None:  # nothing is shown here
        tokens[np.isin(tokens, policy.sight.family.forbidden)] = NOT_SHOWN
    samples = Samples(
        tokens=tokens, lengths=lengths, generated=generated,
        lags=np.zeros(count, np.int32), carries_loss=generated, rollout_log_probs=np.zeros(count, np.float32),
        turns=generated - 1, temperatures=np.ones(len(lengths), np.float32), rewards=np.zeros(len(lengths)),
        turn_rewards=np.zeros((len(lengths), 1)), group_size=len(lengths),
    )  # fmt: skip
    (batch,) = micro_batches(
        samples, np.zeros(count, np.float32), plan_passes(lengths, count * len(lengths), packed=packed), packed=packed
    )
    return batch
