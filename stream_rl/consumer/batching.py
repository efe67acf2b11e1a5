"""From groups to flat arrays: which rank trains what, and which tokens carry loss.

    groups of a step ─► mini-batches (by position) ─► ranks (by bytes) ─► micro-batches (micro_batch.py)

Invariants: the mini-batch of a group depends on its place in the ledger entry alone, never on the rank layout; only
fresh generated tokens are selected: nothing else can carry loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_rl.consumer.vision import Shown
from stream_rl.sample import OBSERVATION_STEP, Group, Sample
from stream_rl.scheduling import loss_mask
from stream_rl.staleness import token_lags

__all__ = [
    "LAG_BUCKETS",
    "Floats",
    "Ints",
    "Samples",
    "flatten",
    "lag_buckets",
    "mini_batch_groups",
    "per_sample",
    "rewards",
    "shard",
    "share",
]

T = TypeVar("T")
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LAG_BUCKETS = ("0", "1", "2", "3-4", "5-8", ">8")
"""Lags of tokens, in versions, as figures are told apart by them."""
_LAST_OF_BUCKET = (0, 1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one rank and one mini-batch, flat: n samples of t tokens together, prompt and response.

    tokens             int64 (t,)
    lengths            int64 (n,)     prompt and response, never 0
    generated          bool (t,)
    lags               int32 (t,)     versions from the one that wrote the token to the step's start, 0 where nothing
                                      was generated
    carries_loss       bool (t,)      generated, and at most max_staleness versions old
    rollout_log_probs  float32 (t,)   0.0 where nothing was generated
    turns              int64 (t,)     the turn that generated the token, -1 where nothing was generated
    temperatures       float32 (n,)
    rewards            float64 (n,)   whole groups of `group_size` siblings, one after the other
    turn_rewards       float64 (n, turns)  each turn's own, 0.0 where a sample has fewer
    images             what the samples show, for a model that sees
    """

    tokens: Ints
    lengths: Ints
    generated: NDArray[np.bool_]
    lags: NDArray[np.int32]
    carries_loss: NDArray[np.bool_]
    rollout_log_probs: NDArray[np.float32]
    turns: Ints
    temperatures: NDArray[np.float32]
    rewards: NDArray[np.float64]
    turn_rewards: NDArray[np.float64]
    group_size: int
    images: Shown | None = None

    def loss_counts(self) -> tuple[int, int, int]:
        """Tokens that carry loss, samples with such tokens, samples."""
        trained = per_sample(np.add, self.carries_loss.astype(np.int64), self.lengths)
        return int(trained.sum()), int((trained > 0).sum()), len(trained)


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


def shard(weights: Sequence[int], mini_batches: int, rank: int, ranks: int) -> list[list[int]]:
    """The places of a rank's groups among a step's, one list a mini-batch; each mini-batch is shared out by weight.

    Weights are the groups' bytes, not their tokens: docs/trainer.md says how uneven that makes the ranks.
    """
    shards = []
    for places in mini_batch_groups(range(len(weights)), mini_batches):
        owners = share([weights[place] for place in places], ranks)
        shards.append([place for place, owner in zip(places, owners, strict=True) if owner == rank])
    return shards


def flatten(groups: Sequence[Group], *, trainer_version: int, max_staleness: int) -> Samples:
    """Joins the samples of groups into flat arrays.

    Args:
        groups: whole groups of one size; every sample has its reward.
        trainer_version: the version that the step starts from, which is the step's number less one.
        max_staleness: generated tokens older than this many versions carry no loss.
    """
    samples = [sample for group in groups for sample in group.samples]
    prompts = [len(sample.prompt_tokens) for sample in samples]
    lengths = np.array([sample.response_length for sample in samples], np.int64) + np.array(prompts, np.int64)
    versions = _behind_prompts(prompts, [sample.version_steps for sample in samples], OBSERVATION_STEP, np.int32)
    generated = versions != OBSERVATION_STEP
    turns, turn_rewards = _by_turn(samples)
    return Samples(
        tokens=_join([sample.tokens for sample in samples], np.int64),
        lengths=lengths,
        generated=generated,
        lags=token_lags(versions, trainer_version),
        carries_loss=loss_mask(versions, trainer_version, max_staleness),
        rollout_log_probs=_behind_prompts(prompts, [sample.rollout_log_probs for sample in samples], 0.0, np.float32),
        turns=turns,
        temperatures=np.array([sample.temperature for sample in samples], np.float32),
        rewards=_join([rewards(group) for group in groups], np.float64),
        turn_rewards=turn_rewards,
        group_size=len(groups[0].samples) if groups else 1,
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


def lag_buckets(lags: NDArray[np.int32]) -> Ints:
    """The places of lags (k,) in LAG_BUCKETS: int64 (k,)."""
    return np.searchsorted(_LAST_OF_BUCKET, lags)


def _by_turn(samples: Sequence[Sample]) -> tuple[Ints, NDArray[np.float64]]:
    # One pass over all records: those of a turn that was cut share its number.
    pieces, turn_rewards = [], np.zeros((len(samples), max((sample.next_turn for sample in samples), default=0) + 1))
    for number, sample in enumerate(samples):
        pieces.append((-1, len(sample.prompt_tokens)))
        for turn in sample.turns:
            pieces += [(turn.index, len(turn.generated)), (-1, len(turn.observation))]
            turn_rewards[number, turn.index] += turn.reward
    numbers, lengths = np.array(pieces, np.int64).reshape(-1, 2).T
    return np.repeat(numbers, lengths), turn_rewards


def _behind_prompts(prompts: list[int], parts: list[NDArray[Any]], filler: float, dtype: Any) -> NDArray[Any]:
    pieces = [piece for n, part in zip(prompts, parts, strict=True) for piece in (np.full(n, filler, dtype), part)]
    return _join(pieces, dtype)


def _join(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)
