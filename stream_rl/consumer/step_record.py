"""What a step was made of, sample by sample, and the line of `steps.jsonl` that says it.

Each rank knows its own samples only. They are rows of one table with a place for every sample of the step; a rank
leaves the others' rows at zero, so that the sum over ranks is the whole table and no rank layout shows in a figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stream_rl.consumer.batching import Floats, Samples, per_sample, rewards
from stream_rl.metrics.labels import length_bucket
from stream_rl.sample import Group, LedgerEntry
from stream_rl.staleness import group_lag, lag_parts

__all__ = ["SAMPLE_COLUMNS", "sample_rows", "step_record"]

SAMPLE_COLUMNS = (
    "v0", "reward", "response_length", "turns", "versions",
    "generated", "trained", "lag_sum", "lag_max", "lag_min", "trained_lag_max",
)  # fmt: skip
"""Per sample; lags in versions at the step that trains it, `lag_sum` over its generated tokens."""

NO_LAG = np.iinfo(np.int32).max
"""Stands where a token was not generated, in the search for a sample's smallest lag."""


def sample_rows(groups: Sequence[Group], samples: Samples) -> Floats:
    """The table's rows of some groups, float64 (n, columns); `samples` are those of the groups, in order."""
    of_groups = [sample for group in groups for sample in group.samples]
    trained_lag = np.where(samples.carries_loss, samples.lags, 0)
    columns = {
        "v0": np.repeat([group.v0 for group in groups], [len(group.samples) for group in groups]),
        "reward": np.concatenate([rewards(group) for group in groups]) if groups else [],
        "response_length": [sample.response_length for sample in of_groups],
        "turns": [sample.next_turn for sample in of_groups],
        "generated": per_sample(np.add, samples.generated.astype(np.int64), samples.lengths),
        "trained": per_sample(np.add, samples.carries_loss.astype(np.int64), samples.lengths),
        "lag_sum": per_sample(np.add, samples.lags.astype(np.int64), samples.lengths),
        "lag_max": per_sample(np.maximum, samples.lags, samples.lengths),
        "lag_min": per_sample(np.minimum, np.where(samples.generated, samples.lags, NO_LAG), samples.lengths),
        "trained_lag_max": per_sample(np.maximum, trained_lag, samples.lengths),
        "versions": [len({span.version for turn in s.turns for span in turn.spans}) for s in of_groups],
    }
    return np.column_stack([np.asarray(columns[name], np.float64) for name in SAMPLE_COLUMNS])


def step_record(entry: LedgerEntry, table: Floats) -> dict[str, Any]:
    """The figures of a step that follow from its samples, by their names in `steps.jsonl`.

    Args:
        entry: the step's ledger entry.
        table: float64 (groups, group_size, columns), the sum of all ranks' tables.
    """
    column = {name: table[..., number] for number, name in enumerate(SAMPLE_COLUMNS)}
    version = entry.step - 1
    group_lags = group_lag(column["v0"][:, 0], version)
    parts = lag_parts(version - column["lag_max"], version - np.minimum(column["lag_min"], column["lag_max"]), version)
    generated, trained = column["generated"].sum(), column["trained"].sum()
    return {
        "step": entry.step,
        "groups": list(entry.groups),
        "group_v0": column["v0"][:, 0].astype(int).tolist(),
        "reward_mean": float(column["reward"].mean()),
        "reward_std": float(column["reward"].std()),
        "response_length_mean": float(column["response_length"].mean()),
        "response_length_max": int(column["response_length"].max()),
        "turns_mean": float(column["turns"].mean()),
        "generated_tokens": int(generated),
        "trained_tokens": int(trained),
        "masked_tokens": int(generated - trained),
        "masked_by_length": _masked_by_length(column),
        "oldest_group_length": int(column["response_length"][group_lags.argmax()].max()),
        "sample_lags": (column["lag_sum"] / np.maximum(column["generated"], 1)).round(3).ravel().tolist(),
        "token_lag_mean": float(column["lag_sum"].sum() / max(generated, 1)),
        "token_lag_max": int(column["lag_max"].max()),
        "trained_token_lag_max": int(column["trained_lag_max"].max()),
        "sample_lag_mean": float(parts.lag.mean()),
        "lag_parts": {name: float(part.mean()) for name, part in parts._asdict().items()},
        "group_lag_mean": float(group_lags.mean()),
        "group_lag_max": int(group_lags.max()),
        "max_staleness": entry.max_staleness,
        "max_lag": entry.max_lag,
        "versions_max": int(column["versions"].max()),
        "versions_mean": float(column["versions"].mean()),
        "multi_version_samples": int((column["versions"] > 1).sum()),
    }


def _masked_by_length(column: Mapping[str, Floats]) -> dict[str, int]:
    """Masked tokens by the bucket of their response's length; buckets without any are left out."""
    masked: dict[str, int] = {}
    counts = (column["generated"] - column["trained"]).astype(int)
    for length, count in zip(column["response_length"].ravel(), counts.ravel().tolist(), strict=True):
        if count:
            bucket = length_bucket(length)
            masked[bucket] = masked.get(bucket, 0) + count
    return masked
