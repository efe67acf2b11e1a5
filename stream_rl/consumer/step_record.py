"""What a step was made of, sample by sample, and the line of `steps.jsonl` that says it.

Each rank knows its own samples only. They are rows of one table with a place for every sample of the step; a rank
leaves the others' rows at zero, so that the sum over ranks is the whole table and no rank layout shows in a figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stream_rl.consumer.batching import Floats, Samples, per_sample, rewards
from stream_rl.metrics import catalog
from stream_rl.sample import Group, LedgerEntry
from stream_rl.staleness import lag_parts

SAMPLE_COLUMNS = (
    "v0", "reward", "response_length", "turns", "versions",
    "generated", "trained", "lag_sum", "lag_max", "lag_min", "trained_lag_max",
)  # fmt: skip
"""Per sample; lags in versions at the step that trains it, `lag_sum` over its generated tokens."""

PARTS = ("wait", "load", "train", "publish", "checkpoint")
"""What a step's seconds are spent on."""

_BY_LAG = {
    "ratio_mean": catalog.TOKEN_RATIO,
    "clip_share": catalog.CLIP_SHARE,
    "engine_trainer_kl": catalog.ENGINE_TRAINER_KL,
    "effective_sample_size": catalog.EFFECTIVE_SAMPLE_SIZE,
}
_LAG_SUM, _GENERATED = SAMPLE_COLUMNS.index("lag_sum"), SAMPLE_COLUMNS.index("generated")

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
    group_lag = version - column["v0"][:, 0]
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
        "token_lag_mean": float(column["lag_sum"].sum() / max(generated, 1)),
        "token_lag_max": int(column["lag_max"].max()),
        "trained_token_lag_max": int(column["trained_lag_max"].max()),
        "sample_lag_mean": float(parts.lag.mean()),
        "lag_parts": {name: float(part.mean()) for name, part in parts._asdict().items()},
        "group_lag_mean": float(group_lag.mean()),
        "group_lag_max": int(group_lag.max()),
        "max_staleness": entry.max_staleness,
        "max_lag": entry.max_lag,
        "versions_max": int(column["versions"].max()),
        "versions_mean": float(column["versions"].mean()),
        "multi_version_samples": int((column["versions"] > 1).sum()),
    }


def observe_step(record: Mapping[str, Any], table: Floats) -> None:
    """Counts a step that was trained for the first time in this process's metrics.

    Args:
        record: the step's line in `steps.jsonl`.
        table: float64 (groups, group_size, columns), the sum of all ranks' tables.
    """
    catalog.STEPS.inc()
    for part in PARTS:
        catalog.STEP_SECONDS.inc(record[f"{part}_seconds"], part=part)
    catalog.TRAINED_TOKENS.inc(record["trained_tokens"])
    catalog.MASKED_TOKENS.inc(record["masked_tokens"])
    for row in table.reshape(-1, len(SAMPLE_COLUMNS)):
        catalog.TOKEN_LAG.observe(row[_LAG_SUM] / max(row[_GENERATED], 1.0))
    for v0 in record["group_v0"]:
        catalog.GROUP_LAG.observe(record["step"] - 1 - v0)
    catalog.REWARD_MEAN.set(record["reward_mean"])
    catalog.GRAD_NORM.set(record["grad_norm"])
    # A step without a token of the newest version has no such difference; the gauge keeps the last one.
    if not math.isnan(record["log_prob_difference"]):
        catalog.LOG_PROB_DIFFERENCE.set(record["log_prob_difference"])
    for lag, figures in record["by_lag"].items():
        for figure, gauge in _BY_LAG.items():
            if not math.isnan(figures[figure]):
                gauge.set(figures[figure], lag=lag)
    if not math.isnan(record["correction_share"]):
        catalog.CORRECTION_SHARE.set(record["correction_share"])
