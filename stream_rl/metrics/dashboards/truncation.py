"""Truncation and retries: why episodes end, and what is done again."""

from __future__ import annotations

from stream_rl.metrics import catalog
from stream_rl.metrics.dashboards.panel import Dashboard, heatmap, lines, stacked
from stream_rl.metrics.dashboards.promql import heat, latest, mean, quantile, rate, share_of_all

__all__ = ["ENDS", "RESPONSE_LENGTH", "TRUNCATION"]

ENDS = stacked(
    "Why episodes end",
    "Ended samples a second by stop reason; a reason with a setting's name was caused by it. A growing max_turn_len or "
    "max_response_len: answers get longer, or the limit is too low. A growing deadline: engines or world are slow.",
    (rate(catalog.SAMPLES_ENDED, "reason"), "{{reason}}"),
    unit="ops",
)
RESPONSE_LENGTH = lines(
    "Response length",
    "Tokens of finished responses, observations included. A maximum that sits on rollout.max_response_len means cut "
    "episodes; a mean that runs away while reward stands still: length is rewarded, or nothing stops it.",
    (mean(catalog.RESPONSE_LENGTH, "environment"), "mean {{environment}}"),
    (quantile(0.95, catalog.RESPONSE_LENGTH, "environment"), "p95 {{environment}}"),
    (latest(catalog.RESPONSE_LENGTH_MAX, "environment"), "max of the last step {{environment}}"),
)

TRUNCATION = Dashboard(
    "truncation",
    "Truncation and retries",
    "Why episodes end, and what had to be done twice.",
    [
        ENDS,
        lines(
            "Truncated share",
            "Share of ended samples that a limit cut, by the limit. Above a tenth: their rewards say little of the "
            "task; raise the limit that is named, or penalise length.",
            (share_of_all(rate(catalog.SAMPLES_ENDED, "reason", status="truncated"), rate(catalog.SAMPLES_ENDED)),
             "{{reason}}"),
            unit="percentunit",
        ),
        RESPONSE_LENGTH,
        heatmap(
            "Response length over time",
            "The distribution behind the mean. A second band far above the first: runaway answers, look at some with "
            "`stream-rl inspect`.",
            heat(catalog.RESPONSE_LENGTH),
        ),
        lines(
            "Repetition",
            "Mean share of a sample's 8-grams that it had written before. Rising above 0.3: the policy collapses into "
            "loops; lower the learning rate, raise the entropy bonus, go back to an older checkpoint.",
            (mean(catalog.REPETITION, "environment"), "{{environment}}"),
            unit="percentunit",
        ),
        lines(
            "Parse failures",
            "Actions a second that the environment could not parse. High at the start is normal; rising later: the "
            "format is forgotten, see Entropy.",
            (rate(catalog.PARSE_FAILURES, "environment"), "{{environment}}"),
            unit="ops",
        ),
        lines(
            "Environment failures",
            "Failures of the environment's infrastructure by cause, retried or with the budget spent. timeout: raise "
            "environment.step_timeout or repair the world; spent: samples are lost and refilled, see Groups left out.",
            (rate(catalog.ENV_RETRIES, "cause", "outcome"), "{{cause}} {{outcome}}"),
            unit="ops",
        ),
        lines(
            "Resumes",
            "Samples taken up again: why they came back (released by a drain, expired with a dead producer), and how "
            "their environment did. Many by restart: episodes begin anew, give the environment a state_dict.",
            (rate(catalog.RESUMES, "cause", "how"), "{{cause}}, {{how}}"),
            unit="ops",
        ),
        lines(
            "Tokens saved and prefilled again",
            "Generated tokens that resumes kept, and context tokens computed once more. Prefilled again all the time: "
            "the prefix cache is off or too small, or sessions move between engines.",
            (rate(catalog.TOKENS_SAVED, "cause"), "saved, {{cause}}"),
            (rate(catalog.PREFILLED_AGAIN, "environment"), "prefilled again {{environment}}"),
        ),
        lines(
            "Engine requests retried",
            "By cause. A burst at a weight update or an engine's death is normal; a steady line: an engine drops "
            "connections, see its log in RUN/logs.",
            (rate(catalog.ENGINE_REQUEST_RETRIES, "cause"), "{{cause}}"),
            unit="ops",
        ),
        lines(
            "Commits refused",
            "By reason. lease_lost: a producer was silent for lease_seconds, its machine is overloaded; "
            "journal_mismatch: Redis lost its newest writes and gets them again.",
            (rate(catalog.COMMITS_REFUSED, "reason"), "{{reason}}"),
            unit="ops",
        ),
        lines(
            "Control tokens in texts",
            "Prompts and observations a second that spelt control tokens; they are read as text. A steady line: clean "
            "the data, somebody may be trying to forge turns.",
            (rate(catalog.CONTROL_TOKENS_READ_AS_TEXT), "texts"),
            unit="ops",
        ),
    ],
)  # fmt: skip
