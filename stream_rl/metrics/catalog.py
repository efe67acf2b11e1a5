"""Every metric, each defined once: name, kind, labels, buckets and help.

A metric is used where the fact is accepted (a turn is counted when its commit is), so that a zombie, a retry or a
resume never counts twice:

    catalog.TURNS_PER_SAMPLE.observe(3, environment="guess_number")

Names follow Prometheus: prefix `stream_rl_`, base units, `_total` for counters, `_seconds` for times. Labels are
bounded: environment and process names, reasons, causes; never ids of samples or groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

Kind = Literal["counter", "gauge", "histogram"]
PREFIX = "stream_rl_"
METRICS: list[Metric] = []

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
TOKENS = tuple(float(4**power) for power in range(1, 10))
SMALL = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 100.0)


@dataclass(slots=True)
class Metric:
    """One metric of the catalog; `inc`, `set` and `observe` take its labels as keywords."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    registry: CollectorRegistry = REGISTRY
    _collector: Counter | Gauge | Histogram = field(init=False, repr=False)
    _children: dict[tuple[str | None, ...], Counter | Gauge | Histogram] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        name = PREFIX + self.name
        if self.kind == "counter":
            self._collector = Counter(name, self.help, self.labels, registry=self.registry)
        elif self.kind == "gauge":
            self._collector = Gauge(name, self.help, self.labels, registry=self.registry)
        else:
            self._collector = Histogram(name, self.help, self.labels, registry=self.registry, buckets=self.buckets)
        METRICS.append(self)

    def inc(self, amount: float = 1.0, **labels: str) -> None:
        """Adds to a counter (or gauge)."""
        child = self._child(labels)
        assert isinstance(child, Counter | Gauge)
        child.inc(amount)

    def set(self, value: float, **labels: str) -> None:
        """Sets a gauge."""
        child = self._child(labels)
        assert isinstance(child, Gauge)
        child.set(value)

    def observe(self, value: float, **labels: str) -> None:
        """Adds one observation to a histogram."""
        child = self._child(labels)
        assert isinstance(child, Histogram)
        child.observe(value)

    def _child(self, labels: dict[str, str]) -> Counter | Gauge | Histogram:
        if not self.labels:
            return self._collector
        # prometheus-client checks and sorts the labels at every call, which ten times a turn is a good part of it.
        key = tuple(map(labels.get, self.labels))
        if (child := self._children.get(key)) is None:
            child = self._children[key] = self._collector.labels(**labels)
        return child


# Samples and turns (producers)
TURNS_PER_SAMPLE = Metric("turns_per_sample", "histogram", "Turns of a finished sample", ("environment",), SMALL)
SAMPLES_ENDED = Metric(
    "samples_ended_total", "counter", "Samples ended, by status and stop reason", ("environment", "status", "reason")
)
TURNS_COMMITTED = Metric("turns_committed_total", "counter", "Complete turns committed", ("environment",))
ENV_RETRIES = Metric("env_retries_total", "counter", "Environment calls retried, by cause", ("environment", "cause"))
CONTROL_TOKENS_READ_AS_TEXT = Metric(
    "control_tokens_read_as_text_total", "counter", "Prompts and observations that spelt control tokens"
)
PARSE_FAILURES = Metric("parse_failures_total", "counter", "Actions the environment could not parse", ("environment",))
RESUMES = Metric(
    "resumes_total", "counter", "Samples resumed, by how the environment came back", ("environment", "how")
)
TOKENS_SAVED = Metric("resume_tokens_saved_total", "counter", "Generated tokens that a resume did not repeat", ())
COMMITS_REFUSED = Metric("commits_refused_total", "counter", "Commits refused, by reason", ("reason",))
ROOM_WAIT_SECONDS = Metric(
    "room_wait_seconds_total", "counter", "Seconds a producer got less work than it asked for: no room", ("limit",)
)
TOOL_CALLS = Metric(
    "tool_calls_total", "counter", "Calls of tools, retries included, by tool and outcome", ("tool", "outcome")
)
JUDGE_QUESTIONS = Metric(
    "judge_questions_total", "counter", "Questions to a judge: answered, cached, retried, refused, failed", ("outcome",)
)
GENERATE_SECONDS = Metric(
    "turn_generate_seconds", "histogram", "Seconds a turn waited for the engine", ("environment",), SECONDS
)
ENV_SECONDS = Metric("turn_env_seconds", "histogram", "Seconds of a turn's environment step", ("environment",), SECONDS)
ENCODE_SECONDS = Metric(
    "turn_encode_seconds", "histogram", "Seconds to encode an observation", ("environment",), SECONDS
)
COMMIT_SECONDS = Metric("turn_commit_seconds", "histogram", "Seconds of a turn's commit", ("environment",), SECONDS)
GENERATED_TOKENS = Metric("turn_generated_tokens", "histogram", "Tokens generated in a turn", ("environment",), TOKENS)
OBSERVATION_TOKENS = Metric(
    "turn_observation_tokens", "histogram", "Observation tokens of a turn", ("environment",), TOKENS
)
SAMPLE_REWARD = Metric(
    "sample_reward", "histogram", "Reward of a finished sample, once per trajectory", ("environment",),
    tuple(round(0.1 * tenth, 1) for tenth in range(11)),
)  # fmt: skip
RESPONSE_LENGTH = Metric("response_length_tokens", "histogram", "Response length", ("environment",), TOKENS)
LIVE_SAMPLES = Metric("live_samples", "gauge", "Samples this producer holds", ())
ENGINE_REQUEST_RETRIES = Metric(
    "engine_request_retries_total", "counter", "Engine requests retried, by cause", ("cause",)
)
VERSION_MISMATCHES = Metric(
    "version_mismatches_total", "counter", "Answers stamped older than what the engine had confirmed", ("engine",)
)
OLDER_CACHE_TOKENS = Metric(
    "older_cache_tokens_total", "counter", "Tokens perhaps written from a cache of older weights (in_place only)", ()
)

# Trainer
STEPS = Metric("trainer_steps_total", "counter", "Training steps finished", ())
STEP_SECONDS = Metric(
    "trainer_seconds_total", "counter", "Trainer seconds, by part: wait, load, train, publish, checkpoint", ("part",)
)
TRAINED_TOKENS = Metric("trained_tokens_total", "counter", "Tokens that carried loss", ())
MASKED_TOKENS = Metric("masked_tokens_total", "counter", "Generated tokens without loss: older than max_staleness", ())
TOKEN_LAG = Metric(
    "token_lag_versions", "histogram", "Mean lag of a trained sample's generated tokens, in versions", (), SMALL
)
GROUP_LAG = Metric("group_lag_versions", "histogram", "Lag of a group's v0 when it is trained, in versions", (), SMALL)
REWARD_MEAN = Metric("trainer_reward_mean", "gauge", "Mean reward of the last step's samples", ())
LOG_PROB_DIFFERENCE = Metric(
    "log_prob_difference", "gauge", "Mean |engine - trainer| log-prob, on tokens of the newest version", ()
)
TOKEN_RATIO = Metric("token_ratio", "gauge", "Mean pi / pi_rollout of trained tokens, by lag in versions", ("lag",))
CLIP_SHARE = Metric("clip_share", "gauge", "Share of trained tokens whose ratio was clipped, by their lag", ("lag",))
ENGINE_TRAINER_KL = Metric("engine_trainer_kl", "gauge", "KL(engine || trainer) per token in nats, by lag", ("lag",))
EFFECTIVE_SAMPLE_SIZE = Metric(
    "effective_sample_size", "gauge", "Effective share of the trained tokens under pi / pi_rollout, by lag", ("lag",)
)
CORRECTION_SHARE = Metric("correction_share", "gauge", "Share of trained tokens whose importance weight is bounded", ())
GRAD_NORM = Metric("grad_norm", "gauge", "Gradient norm before clipping", ())
TRAINER_VERSION = Metric("trainer_version", "gauge", "Newest published weight version (step)", ())
PUBLISH_SECONDS = Metric("publish_seconds", "histogram", "Seconds an engine's weight update took", ("engine",), SECONDS)

# Run (supervisor)
ENGINE_VERSION = Metric("engine_version", "gauge", "Weight version an engine serves (step)", ("engine",))
GROUPS = Metric("groups", "gauge", "Groups by state: live, complete, trained, filtered, dead_lettered", ("state",))
SAMPLES = Metric("samples", "gauge", "Samples by state: pending, leased, resumable", ("state",))
RECOVERIES = Metric("recoveries_total", "counter", "Processes brought back after a death", ("process",))
