"""Staleness: how old what is trained was, and what the bound costs."""

from __future__ import annotations

from stream_rl.metrics import catalog
from stream_rl.metrics.dashboards.panel import Dashboard, heatmap, lines, stacked
from stream_rl.metrics.dashboards.promql import heat, latest, mean, quantile, rate, share

__all__ = ["GROUP_LAG", "STALENESS"]

GROUP_LAG = lines(
    "Group lag",
    "Versions between a group's start and its training, against the bounds. At max_lag: the trainer waits for the "
    "oldest group, see Trainer waits; above it: a bug, and an alert.",
    (mean(catalog.GROUP_LAG), "mean"),
    (latest(catalog.GROUP_LAG_MAX), "max of the last step"),
    (latest(catalog.SETTING, "name", name="max_lag|max_staleness"), "{{name}}"),
)

STALENESS = Dashboard(
    "staleness",
    "Staleness",
    "How old the policy was that wrote what is trained: bounded by run_ahead, max_staleness and max_lag.",
    [
        GROUP_LAG,
        lines(
            "Sample lag",
            "Mean lag of a trained sample's tokens, each sample counted once. Well under 1 while the trainer waits: "
            "raise run_ahead; near max_staleness: lower it.",
            (mean(catalog.TOKEN_LAG), "mean"),
            (quantile(0.95, catalog.TOKEN_LAG), "p95"),
        ),
        stacked(
            "Token lag",
            "Trained tokens a second by their lag, so that long samples weigh more. A growing share of old tokens: few "
            "long episodes hold the batch back; look at Masked tokens by response length.",
            (rate(catalog.TRAINED_TOKENS, "lag"), "lag {{lag}}"),
        ),
        heatmap(
            "Group lag over time",
            "The distribution behind the mean. Two bands: short and long episodes live at different ages.",
            heat(catalog.GROUP_LAG),
        ),
        stacked(
            "Masked tokens by response length",
            "Tokens a second that were too old to carry loss, by the length of their response. All in one long bucket: "
            "exactly the long episodes are not learned from; raise max_staleness, or lower run_ahead.",
            (rate(catalog.MASKED_TOKENS, "length"), "{{length}}"),
        ),
        stacked(
            "Trainer waits by reason and length",
            "Share of the time that the trainer waited: for enough groups, or at the lag bound for the oldest one, by "
            "that group's longest response. lag_rule: the longest episodes set the pace; raise max_lag, or cap them.",
            (rate(catalog.WAIT_SECONDS, "reason", "length"), "{{reason}} {{length}}"),
            unit="percentunit",
        ),
        lines(
            "Wait for siblings",
            "Seconds from a group's first finished sample to its last. p95 far above the median: one sibling in a "
            "group is much longer; finished ones age meanwhile.",
            (quantile(0.5, catalog.SIBLING_WAIT_SECONDS), "p50"),
            (quantile(0.95, catalog.SIBLING_WAIT_SECONDS), "p95"),
            (mean(catalog.SIBLING_WAIT_SECONDS), "mean"),
            unit="s",
        ),
        lines(
            "Samples of several versions",
            "Share of trained samples that more than one weight version wrote. High is normal for long episodes; see "
            "Effective sample size for what it costs.",
            (share(rate(catalog.MIXED_SAMPLES), rate(catalog.TRAINED_SAMPLES)), "share"),
            unit="percentunit",
        ),
        lines(
            "Importance ratio",
            "Mean ratio of the policy to the one that wrote the tokens, by lag. Away from 1 at lag 0: engine and "
            "trainer disagree; drifting with lag: the policy moves fast, lower the learning rate or the staleness.",
            (latest(catalog.TOKEN_RATIO, "lag"), "lag {{lag}}"),
            unit="percentunit",
        ),
        lines(
            "Clipped tokens",
            "Share of trained tokens whose ratio the clip held, by lag, and whose importance weight is bounded. Above "
            "a fifth: most of the batch is too old or the steps are too large.",
            (latest(catalog.CLIP_SHARE, "lag"), "clipped, lag {{lag}}"),
            (latest(catalog.CORRECTION_SHARE), "weight bounded"),
            unit="percentunit",
        ),
        lines(
            "Effective sample size",
            "Share of the trained tokens that the importance weights leave effective, by lag. Below a half: old tokens "
            "add noise; lower max_staleness.",
            (latest(catalog.EFFECTIVE_SAMPLE_SIZE, "lag"), "lag {{lag}}"),
            unit="percentunit",
        ),
        lines(
            "Version stamps",
            "Answers stamped older than what the engine had confirmed, and tokens perhaps from a cache of older "
            "weights (in_place only). Mismatches in any mode: take the engine out and look at its log.",
            (rate(catalog.VERSION_MISMATCHES, "engine"), "mismatches {{engine}}"),
            (rate(catalog.OLDER_CACHE_TOKENS), "tokens of older caches"),
            unit="ops",
        ),
    ],
)  # fmt: skip
