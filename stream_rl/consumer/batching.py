"""From groups to tensors: which rank trains what, which samples share a forward pass, which tokens carry loss.

    groups of a step ─► mini-batches (by position) ─► ranks (by tokens) ─► micro-batches (by length)

Invariants: the mini-batch of a group depends on its place in the ledger entry alone, never on the rank layout; every
rank runs the same number of micro-batches; only fresh generated tokens are selected: nothing else can carry loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stream_rl.consumer.advantage import group_advantages
from stream_rl.sample import OBSERVATION_STEP, Group
from stream_rl.scheduling import loss_mask

T = TypeVar("T")
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one rank and one mini-batch, flat: n samples of t tokens together, prompt and response.

    tokens             int64 (t,)
    lengths            int64 (n,)     prompt and response, never 0
    generated          bool (t,)
    versions           int32 (t,)     step of the version that wrote the token, -1 where nothing was generated
    carries_loss       bool (t,)      generated, and at most max_staleness versions old
    rollout_log_probs  float32 (t,)   0.0 where nothing was generated
    advantages         float32 (n,)
    temperatures       float32 (n,)
    newest             bool (n,)      written wholly by the version that the step starts from
    """

    tokens: Ints
    lengths: Ints
    generated: NDArray[np.bool_]
    versions: NDArray[np.int32]
    carries_loss: NDArray[np.bool_]
    rollout_log_probs: NDArray[np.float32]
    advantages: NDArray[np.float32]
    temperatures: NDArray[np.float32]
    newest: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass: b right-padded rows of l tokens, k of which carry loss.

    tokens             int64 (b, l)
    predictors         int64 (k,)     places in the flat (b * l) hidden states that predict the targets
    targets            int64 (k,)
    rollout_log_probs  float32 (k,)
    advantages         float32 (k,)
    temperatures       float32 (k,)
    newest             bool (k,)
    """

    tokens: Tensor
    predictors: Tensor
    targets: Tensor
    rollout_log_probs: Tensor
    advantages: Tensor
    temperatures: Tensor
    newest: Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        return MicroBatch(*(getattr(self, name).to(device) for name in self.__slots__))


def mini_batch_groups(groups: Sequence[T], mini_batches: int) -> list[tuple[T, ...]]:
    """Deals a step's groups to its mini-batches in turn, so that each has old and new ones."""
    return [tuple(groups[start::mini_batches]) for start in range(mini_batches)]


def share(weights: Sequence[int], ranks: int) -> list[int]:
    """The rank of each item: heaviest first, each to the rank that has least so far. Ties go to the lower rank.

    The heaviest rank has at most 4/3 of what the best division would give it (Graham 1969, longest processing time).
    """
    loads = [0] * ranks
    owners = [0] * len(weights)
    for item in sorted(range(len(weights)), key=lambda index: (-weights[index], index)):
        owner = loads.index(min(loads))
        owners[item] = owner
        loads[owner] += weights[item]
    return owners


def plan_micro_batches(lengths: Ints, max_tokens: int) -> list[Ints]:
    """Divides samples into forward passes of at most `max_tokens` padded tokens, longest first.

    Neighbours in length share a pass, which keeps padding small. A sample longer than `max_tokens` gets its own pass.

    Returns:
        Indices into `lengths`, one array per pass.
    """
    order = np.argsort(-lengths, kind="stable")
    passes: list[Ints] = []
    start = 0
    while start < len(order):
        rows = max(1, max_tokens // int(lengths[order[start]]))
        passes.append(order[start : start + rows])
        start += rows
    return passes


def flatten(groups: Sequence[Group], *, trainer_version: int, max_staleness: int) -> Samples:
    """Joins the samples of groups into flat arrays, advantages included.

    Args:
        groups: whole groups; every sample has its reward.
        trainer_version: the version that the step starts from, which is the step's number less one.
        max_staleness: generated tokens older than this many versions carry no loss.
    """
    samples = [sample for group in groups for sample in group.samples]
    prompts = [len(sample.prompt_tokens) for sample in samples]
    lengths = np.array([sample.response_length for sample in samples], np.int64) + np.array(prompts, np.int64)
    versions = _behind_prompts(prompts, [sample.version_steps for sample in samples], OBSERVATION_STEP, np.int32)
    generated = versions != OBSERVATION_STEP
    return Samples(
        tokens=_join([sample.tokens for sample in samples], np.int64),
        lengths=lengths,
        generated=generated,
        versions=versions,
        carries_loss=loss_mask(versions, trainer_version, max_staleness),
        rollout_log_probs=_behind_prompts(prompts, [sample.rollout_log_probs for sample in samples], 0.0, np.float32),
        advantages=_join([group_advantages(rewards(group)[np.newaxis])[0] for group in groups], np.float32),
        temperatures=np.array([sample.temperature for sample in samples], np.float32),
        newest=~per_sample(np.logical_or, generated & (versions != trainer_version), lengths),
    )


def rewards(group: Group) -> NDArray[np.float64]:
    """The siblings' rewards, float64 (group_size,)."""
    assert all(sample.reward is not None for sample in group.samples), f"group {group.index} is not scored"
    return np.array([sample.reward for sample in group.samples], np.float64)


def per_sample(reduce: np.ufunc, values: NDArray[Any], lengths: Ints) -> NDArray[Any]:
    """Reduces a flat (t,) array over each sample's tokens: (n,). `lengths` has no zeros."""
    if not len(lengths):
        return np.zeros(0, values.dtype)
    reduced: NDArray[Any] = reduce.reduceat(values, np.cumsum(lengths) - lengths)
    return reduced


def micro_batches(samples: Samples, max_tokens: int) -> list[MicroBatch]:
    """The forward passes for one rank's samples of one mini-batch."""
    starts = np.cumsum(samples.lengths) - samples.lengths
    return [_pad(samples, starts, rows) for rows in plan_micro_batches(samples.lengths, max_tokens)]


def empty_micro_batch() -> MicroBatch:
    """A pass of one token without loss: keeps a rank in step with ranks that have more to do."""
    none, real = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    return MicroBatch(torch.zeros(1, 1, dtype=torch.int64), none, none, real, real, real, none.bool())


def _pad(samples: Samples, starts: Ints, rows: Ints) -> MicroBatch:
    lengths = samples.lengths[rows]
    width = int(lengths.max())
    row_of = np.repeat(np.arange(len(rows)), lengths)
    column_of = np.arange(len(row_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    source = np.repeat(starts[rows], lengths) + column_of
    tokens = np.zeros((len(rows), width), np.int64)
    tokens[row_of, column_of] = samples.tokens[source]
    trained = samples.carries_loss[source]
    of_sample = rows[row_of[trained]]
    return MicroBatch(
        tokens=torch.from_numpy(tokens),
        # A token is predicted by the hidden state before it; the prompt is never empty, so there is one in the row.
        predictors=torch.from_numpy(row_of[trained] * width + column_of[trained] - 1),
        targets=torch.from_numpy(samples.tokens[source[trained]]),
        rollout_log_probs=torch.from_numpy(samples.rollout_log_probs[source[trained]]),
        advantages=torch.from_numpy(samples.advantages[of_sample]),
        temperatures=torch.from_numpy(samples.temperatures[of_sample]),
        newest=torch.from_numpy(samples.newest[of_sample]),
    )


def _behind_prompts(prompts: list[int], parts: list[NDArray[Any]], filler: float, dtype: Any) -> NDArray[Any]:
    pieces = [piece for n, part in zip(prompts, parts, strict=True) for piece in (np.full(n, filler, dtype), part)]
    return _join(pieces, dtype)


def _join(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)
