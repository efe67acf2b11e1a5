"""Micro-batches: which samples of a rank share a forward pass, and the tensors of one.

    packed   one row, the samples end to end, longest first         | a a a a a a b b b b c c c d |
    padded   a row a sample, for models that cannot be packed       | a a a a a a | b b b b - - |

Invariants: a pass holds at most `max_tokens` tokens, padding included, unless a single sample is longer; positions
begin at 0 in every sequence; every token is predicted from a place of its own sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stream_rl.consumer.batching import Ints, Samples, lag_buckets, share
from stream_rl.consumer.vision import ImageBatch

__all__ = ["MicroBatch", "empty_micro_batch", "level_passes", "micro_batches", "plan_passes"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass: n sequences of t tokens together, k of which carry loss.

    tokens             int64 (1, t) packed; (n, longest) padded on the right
    positions          int64 like tokens, from 0 in every sequence
    lengths            of the n sequences, in order
    predictors         int64 (k,)     places in the flattened hidden states that predict the targets
    targets            int64 (k,)
    rollout_log_probs  float32 (k,)
    advantages         float32 (k,)
    temperatures       float32 (k,)
    rows               int64 (k,)     the sequence that the token is in
    row_counts         float32 (n,)   how many of the k tokens are in each sequence
    buckets            int64 (k,)     the token's lag, as a place in LAG_BUCKETS
    places             int64 (k,)     the token's place in the flat arrays of its `Samples`
    images             what the tokens show, for a model that sees
    """

    tokens: Tensor
    positions: Tensor
    lengths: tuple[int, ...]
    predictors: Tensor
    targets: Tensor
    rollout_log_probs: Tensor
    advantages: Tensor
    temperatures: Tensor
    rows: Tensor
    row_counts: Tensor
    buckets: Tensor
    places: Tensor
    images: ImageBatch | None = None

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        moved: dict[str, Any] = {
            name: v.to(device) if isinstance(v, Tensor | ImageBatch) else v for name, v in values.items()
        }
        return MicroBatch(**moved)


def plan_passes(lengths: Ints, max_tokens: int, *, packed: bool) -> list[Ints]:
    """Divides samples into forward passes of at most `max_tokens` tokens, longest first.

    Packed, a sample goes into the first pass with room for it, which takes at most 11/9 of the fewest passes possible,
    and one more (Johnson 1973, first fit decreasing). Padded, neighbours in length share a pass, which keeps padding
    small. A sample longer than `max_tokens` gets its own pass.

    Returns:
        Indices into `lengths`, one array per pass.
    """
    order = np.argsort(-lengths, kind="stable")
    return _first_fit(order, lengths, max_tokens) if packed else _neighbours(order, lengths, max_tokens)


def level_passes(passes: list[Ints], lengths: Ints, max_tokens: int, count: int) -> list[Ints]:
    """Divides the samples of packed passes anew into `count`, which some other rank needs, as evenly as they go.

    Ranks that make the same number of passes of about the same size wait least for each other.

    Returns:
        At most `count` passes, none of them empty; those given when the even ones would be larger than `max_tokens`.
    """
    owners = np.array(share(lengths.tolist(), count), np.int64)
    loads = np.bincount(owners, lengths, minlength=count) if len(lengths) else np.zeros(count)
    if loads.max() > max(max_tokens, lengths.max(initial=0)):
        return passes
    order = np.argsort(-lengths, kind="stable")
    level = [order[owners[order] == owner] for owner in range(count)]
    return [indices for indices in level if len(indices)]


def micro_batches(
    samples: Samples, advantages: NDArray[np.float32], passes: list[Ints], *, packed: bool
) -> list[MicroBatch]:
    """The forward passes for one rank's samples of one mini-batch; `advantages` float32 (t,) are by token."""
    return [_micro_batch(samples, advantages, indices, packed=packed) for indices in passes]


def empty_micro_batch() -> MicroBatch:
    """A pass of one token without loss: keeps a rank in step with ranks that have more to do."""
    none, real, one = torch.zeros(0, dtype=torch.int64), torch.zeros(0), torch.zeros(1, 1, dtype=torch.int64)
    return MicroBatch(
        tokens=one, positions=one, lengths=(1,), predictors=none, targets=none, rollout_log_probs=real,
        advantages=real, temperatures=real, rows=none, row_counts=torch.zeros(1), buckets=none, places=none,
    )  # fmt: skip


def _micro_batch(samples: Samples, advantages: NDArray[np.float32], indices: Ints, *, packed: bool) -> MicroBatch:
    lengths = samples.lengths[indices]
    width = 0 if packed else int(lengths.max())
    sequence = np.repeat(np.arange(len(indices)), lengths)
    within = np.arange(len(sequence)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    source = np.repeat((np.cumsum(samples.lengths) - samples.lengths)[indices], lengths) + within
    at = np.arange(len(sequence)) if packed else sequence * width + within
    tokens, positions = np.zeros((2, 1 if packed else len(indices), len(sequence) if packed else width), np.int64)
    tokens.flat[at] = samples.tokens[source]
    positions[:] = within if packed else np.arange(width)
    trained = samples.carries_loss[source]
    row, place = sequence[trained], source[trained]
    arrays: dict[str, NDArray[Any]] = {
        "tokens": tokens,
        "positions": positions,
        # A token is predicted by the hidden state before it; the prompt is never empty, so it is of the same sequence.
        "predictors": at[trained] - 1,
        "targets": samples.tokens[place],
        "rollout_log_probs": samples.rollout_log_probs[place],
        "advantages": advantages[place],
        "temperatures": samples.temperatures[indices[row]],
        "rows": row,
        "row_counts": np.bincount(row, minlength=len(indices)).astype(np.float32),
        "buckets": lag_buckets(samples.lags[place]),
        "places": place,
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    images = None if samples.images is None else samples.images.batch(indices, source, at, tokens.shape)
    return MicroBatch(lengths=tuple(lengths.tolist()), images=images, **tensors)


def _first_fit(order: Ints, lengths: Ints, max_tokens: int) -> list[Ints]:
    passes: list[list[int]] = []
    room = np.zeros(len(order), np.int64)
    for index in order.tolist():
        fitting = room[: len(passes)] >= lengths[index]
        number = int(fitting.argmax()) if fitting.any() else len(passes)
        if number == len(passes):
            passes.append([])
            room[number] = max_tokens
        passes[number].append(index)
        room[number] -= lengths[index]
    return [np.array(indices, np.int64) for indices in passes]


def _neighbours(order: Ints, lengths: Ints, max_tokens: int) -> list[Ints]:
    passes: list[Ints] = []
    start = 0
    while start < len(order):
        rows = max(1, max_tokens // int(lengths[order[start]]))
        passes.append(order[start : start + rows])
        start += rows
    return passes
