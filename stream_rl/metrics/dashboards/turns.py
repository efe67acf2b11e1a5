"""Turns: how long they take, and where in an episode."""

from __future__ import annotations

from stream_rl.metrics import catalog
from stream_rl.metrics.dashboards.panel import Dashboard, GrafanaPanel, heatmap, lines
from stream_rl.metrics.dashboards.promql import heat, mean, quantile, rate, share

__all__ = ["TURNS", "TURNS_PER_SAMPLE"]

RANKS = (0.5, 0.9, 0.95, 0.99)


def percentiles(title: str, metric: catalog.Metric, look: str) -> GrafanaPanel:
    """The 50th to 99th percentiles of a histogram of seconds, for each environment."""
    return lines(title, look, *_ranks(metric), unit="s")


def _ranks(metric: catalog.Metric) -> list[tuple[str, str]]:
    return [(quantile(rank, metric, "environment"), f"p{100 * rank:g} {{{{environment}}}}") for rank in RANKS]


TURNS_PER_SAMPLE = lines(
    "Turns per sample",
    "How many turns finished samples took. At rollout.max_turns for most: episodes are cut, see Why episodes end; "
    "raise the limit or make the task shorter. Falling to 1 early: the agent gives up or ends at once, look at "
    "`stream-rl inspect`.",
    (mean(catalog.TURNS_PER_SAMPLE, "environment"), "mean {{environment}}"),
    *_ranks(catalog.TURNS_PER_SAMPLE),
)

TURNS = Dashboard(
    "turns",
    "Turns",
    "Where the seconds of a turn go, as distributions: a mean hides the few turns that hold a whole group back.",
    [
        TURNS_PER_SAMPLE,
        heatmap(
            "Turns per sample over time",
            "The distribution behind the mean: two bands are two kinds of episodes. A band that moves to the top while "
            "reward falls: the agent talks without getting anywhere.",
            heat(catalog.TURNS_PER_SAMPLE),
        ),
        heatmap(
            "Generate over time",
            "Seconds that turns waited for an engine. A band that climbs for all: engines are full, see Engine queue. "
            "A thin far band: a few long turns; lower rollout.max_turn_len, or give them more room in run_ahead.",
            heat(catalog.GENERATE_SECONDS),
            unit="s",
        ),
        percentiles(
            "Generate", catalog.GENERATE_SECONDS,
            "Seconds a turn waited for the engine, pauses of weight updates included. p99 far above p50: long answers "
            "or an engine that is slower than its siblings, see Engines.",
        ),
        percentiles(
            "Engine queue", catalog.QUEUE_SECONDS,
            "Seconds of that in the engine's queue. More than a tenth of Generate: too many samples for the engines; "
            "lower producer.concurrency or add engines.",
        ),
        percentiles(
            "Environment step", catalog.ENV_SECONDS,
            "Seconds the world took. p99 near environment.step_timeout: calls hang, see Environment failures. All "
            "quantiles rise together: more environment.executor_threads, or executor processes for those that compute.",
        ),
        lines(
            "Encode and commit",
            "Seconds to encode an observation and to commit a turn, 95th percentile. Commit above 0.1: Redis is slow "
            "or far, see Redis memory; encode above 0.05: very long observations, cut them in the environment.",
            (quantile(0.95, catalog.ENCODE_SECONDS, "environment"), "encode {{environment}}"),
            (quantile(0.95, catalog.COMMIT_SECONDS, "environment"), "commit {{environment}}"),
            unit="s",
        ),
        percentiles(
            "Time to first action", catalog.FIRST_ACTION_SECONDS,
            "Active seconds until a sample's first turn is committed: reset, prefill and first answer. High while "
            "Generate is low: the environment's reset is slow, keep its resources open between episodes.",
        ),
        lines(
            "Seconds by turn index",
            "Mean seconds of a turn by its place in the episode. Generate that grows with the place: contexts are "
            "computed again, see Tokens saved and prefilled again. The world growing: it replays or its state swells.",
            (share(rate(catalog.TURN_INDEX_SECONDS, "turn_index", part="generate"),
                   rate(catalog.TURNS_BY_INDEX, "turn_index")), "generate, turn {{turn_index}}"),
            (share(rate(catalog.TURN_INDEX_SECONDS, "turn_index", part="env_step"),
                   rate(catalog.TURNS_BY_INDEX, "turn_index")), "environment, turn {{turn_index}}"),
            unit="s",
        ),
        lines(
            "Tokens per turn",
            "Tokens written and observed in a turn, median and 95th percentile. Written tokens at "
            "rollout.max_turn_len: turns are cut. Observations larger than answers: the context fills with them.",
            (quantile(0.5, catalog.GENERATED_TOKENS, "environment"), "written p50 {{environment}}"),
            (quantile(0.95, catalog.GENERATED_TOKENS, "environment"), "written p95 {{environment}}"),
            (quantile(0.95, catalog.OBSERVATION_TOKENS, "environment"), "observed p95 {{environment}}"),
        ),
        lines(
            "Tool calls",
            "Calls a second by tool and outcome. Many mistakes: the model does not know the tool's schema yet; they "
            "should fall. Failed or timeout: the tool's service, not the model; see its log.",
            (rate(catalog.TOOL_CALLS, "tool", "outcome"), "{{tool}} {{outcome}}"),
            unit="ops",
        ),
        lines(
            "Judge",
            "Questions a second to the LLM judge. Failed or retried: its endpoint is down or too slow, and samples "
            "fail with env_failure; few cached: its answers cannot be reused for what is asked.",
            (rate(catalog.JUDGE_QUESTIONS, "outcome"), "{{outcome}}"),
            unit="ops",
        ),
    ],
)  # fmt: skip
