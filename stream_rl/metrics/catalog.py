"""Every metric, each defined once: name, kind, help, labels, buckets, unit, and the panel that draws it.

What a turn adds is counted when its commit is accepted, so that a zombie, a retry or a resume never counts it twice;
retries and resumes themselves when they happen. What a run's records say (ended samples, steps, the buffer's counters)
the supervisor counts from those records, however often processes die: see run_figures.py.

    catalog.ENV_SECONDS.observe(0.2, environment="guess_number")
"""

from __future__ import annotations

from stream_rl.metrics.metric import METRICS, PREFIX, Kind, Metric

__all__ = ["METRICS", "PREFIX", "SETTING", "TRAINER_VERSION", "TURNS_COMMITTED", "Kind", "Metric"]

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
TOKENS = tuple(float(4**power) for power in range(1, 10))
SMALL = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 100.0)
TENTHS = tuple(round(0.1 * tenth, 1) for tenth in range(11))
REWARDS = (-10.0, -3.0, -1.0, -0.5, *TENTHS, 2.0, 3.0, 10.0)
"""Some below 0: then the sum is no counter, and prometheus-client leaves it out."""

# Samples, from the buffer's records (supervisor)
TURNS_PER_SAMPLE = Metric(
    "turns_per_sample", "histogram", "Complete turns of a finished sample", ("environment",), SMALL,
    unit="turns", panel="Turns per sample",
)  # fmt: skip
SAMPLES_ENDED = Metric(
    "samples_ended_total", "counter", "Samples ended, by status and stop reason", ("environment", "status", "reason"),
    unit="samples", panel="Why episodes end",
)  # fmt: skip
TURNS_COMMITTED = Metric(
    "turns_committed_total", "counter", "Complete turns that the buffer accepted", ("environment",),
    unit="turns", panel="Turns committed",
)  # fmt: skip
SAMPLE_REWARD = Metric(
    "sample_reward", "histogram", "Reward of a finished sample, once per trajectory", ("environment",), REWARDS,
    unit="reward", panel="Reward",
)  # fmt: skip
SAMPLE_REWARDS = Metric(
    "sample_rewards_total", "counter", "Rewards of finished samples added up, those below 0 apart, without their sign",
    ("environment", "sign"), unit="reward", panel="Reward",
)  # fmt: skip
RESPONSE_LENGTH = Metric(
    "response_length_tokens", "histogram", "Response tokens of a finished sample", ("environment",), TOKENS,
    unit="tokens", panel="Response length",
)  # fmt: skip
RESPONSE_LENGTH_MAX = Metric(
    "response_length_max_tokens", "gauge", "Longest response of the last step's samples", ("environment",),
    unit="tokens", panel="Response length",
)  # fmt: skip
GENERATED = Metric(
    "generated_tokens_total", "counter", "Tokens that the model wrote in ended samples", ("environment",),
    unit="tokens", panel="Tokens per second",
)  # fmt: skip
SIBLING_WAIT_SECONDS = Metric(
    "sibling_wait_seconds", "histogram", "Seconds from a group's first finished sample to its last", (), SECONDS,
    unit="seconds", panel="Wait for siblings",
)  # fmt: skip

# Samples and turns (producers)
REPETITION = Metric(
    "repetition_ratio", "histogram", "Share of a finished sample's generated 8-grams that it had written before",
    ("environment",), TENTHS, unit="ratio", panel="Repetition",
)  # fmt: skip
FIRST_ACTION_SECONDS = Metric(
    "first_action_seconds", "histogram", "Active seconds of a sample up to the commit of its first turn",
    ("environment",), SECONDS, unit="seconds", panel="Time to first action",
)  # fmt: skip
ENV_RETRIES = Metric(
    "env_retries_total", "counter", "Failures of an environment's infrastructure, by cause: retried, or budget spent",
    ("environment", "cause", "outcome"), unit="failures", panel="Environment failures",
)  # fmt: skip
CONTROL_TOKENS_READ_AS_TEXT = Metric(
    "control_tokens_read_as_text_total", "counter", "Prompts and observations that spelt control tokens",
    unit="texts", panel="Control tokens in texts",
)  # fmt: skip
PARSE_FAILURES = Metric(
    "parse_failures_total", "counter", "Actions the environment could not parse", ("environment",),
    unit="actions", panel="Parse failures",
)  # fmt: skip
RESUMES = Metric(
    "resumes_total", "counter", "Samples resumed: why they came back, and how their environment did",
    ("environment", "cause", "how"), unit="samples", panel="Resumes",
)  # fmt: skip
TOKENS_SAVED = Metric(
    "resume_tokens_saved_total", "counter", "Generated tokens that a resume did not repeat", ("cause",),
    unit="tokens", panel="Tokens saved and prefilled again",
)  # fmt: skip
PREFILLED_AGAIN = Metric(
    "prefilled_again_tokens_total", "counter", "Context tokens of an earlier turn that an engine computed once more",
    ("environment",), unit="tokens", panel="Tokens saved and prefilled again",
)  # fmt: skip
COMMITS_REFUSED = Metric(
    "commits_refused_total", "counter", "Commits refused, by reason", ("reason",),
    unit="commits", panel="Commits refused",
)  # fmt: skip
ROOM_WAIT_SECONDS = Metric(
    "room_wait_seconds_total", "counter", "Seconds a producer got less work than it asked for: no room", ("limit",),
    unit="seconds", panel="Waiting for room",
)  # fmt: skip
TOOL_CALLS = Metric(
    "tool_calls_total", "counter", "Calls of tools, retries included, by tool and outcome", ("tool", "outcome"),
    unit="calls", panel="Tool calls",
)  # fmt: skip
JUDGE_QUESTIONS = Metric(
    "judge_questions_total", "counter", "Questions to a judge: answered, cached, retried, refused, failed",
    ("outcome",), unit="questions", panel="Judge",
)  # fmt: skip
GENERATE_SECONDS = Metric(
    "turn_generate_seconds", "histogram", "Seconds a turn waited for the engine", ("environment",), SECONDS,
    unit="seconds", panel="Generate",
)  # fmt: skip
TURN_INDEX_SECONDS = Metric(
    "turn_index_seconds_total", "counter", "Seconds of generation and environment, by the turn's place in its episode",
    ("environment", "turn_index", "part"), unit="seconds", panel="Seconds by turn index",
)  # fmt: skip
TURNS_BY_INDEX = Metric(
    "turn_index_turns_total", "counter", "Complete turns, by their place in the episode",
    ("environment", "turn_index"), unit="turns", panel="Seconds by turn index",
)  # fmt: skip
QUEUE_SECONDS = Metric(
    "turn_queue_seconds", "histogram", "Seconds a turn's requests stood in the engine's queue", ("environment",),
    SECONDS, unit="seconds", panel="Engine queue",
)  # fmt: skip
ENV_SECONDS = Metric(
    "turn_env_seconds", "histogram", "Seconds of a turn's environment step", ("environment",), SECONDS,
    unit="seconds", panel="Environment step",
)  # fmt: skip
ENCODE_SECONDS = Metric(
    "turn_encode_seconds", "histogram", "Seconds to encode an observation", ("environment",), SECONDS,
    unit="seconds", panel="Encode and commit",
)  # fmt: skip
COMMIT_SECONDS = Metric(
    "turn_commit_seconds", "histogram", "Seconds of a turn's commit", ("environment",), SECONDS,
    unit="seconds", panel="Encode and commit",
)  # fmt: skip
GENERATED_TOKENS = Metric(
    "turn_generated_tokens", "histogram", "Tokens generated in a turn", ("environment",), TOKENS,
    unit="tokens", panel="Tokens per turn",
)  # fmt: skip
OBSERVATION_TOKENS = Metric(
    "turn_observation_tokens", "histogram", "Observation tokens of a turn", ("environment",), TOKENS,
    unit="tokens", panel="Tokens per turn",
)  # fmt: skip
LIVE_SAMPLES = Metric(
    "live_samples", "gauge", "Samples this producer holds", unit="samples", panel="Samples by producer",
)  # fmt: skip
OLDEST_LEASE_SECONDS = Metric(
    "oldest_lease_seconds", "gauge", "Seconds since a producer took the sample that it has held longest",
    unit="seconds", panel="Oldest lease and partial",
)  # fmt: skip
ENGINE_REQUEST_RETRIES = Metric(
    "engine_request_retries_total", "counter", "Engine requests retried, by cause", ("cause",),
    unit="requests", panel="Engine requests retried",
)  # fmt: skip
VERSION_MISMATCHES = Metric(
    "version_mismatches_total", "counter", "Answers stamped older than what the engine had confirmed", ("engine",),
    unit="answers", panel="Version stamps",
)  # fmt: skip
OLDER_CACHE_TOKENS = Metric(
    "older_cache_tokens_total", "counter", "Tokens perhaps written from a cache of older weights (in_place only)",
    unit="tokens", panel="Version stamps",
)  # fmt: skip

# Steps, from steps.jsonl (supervisor)
STEPS = Metric("trainer_steps_total", "counter", "Training steps finished", unit="steps", panel="Steps per hour")
STEP_SECONDS = Metric(
    "trainer_seconds_total", "counter", "Trainer seconds, by part: wait, load, train, publish, checkpoint", ("part",),
    unit="seconds", panel="Seconds per step",
)  # fmt: skip
TRAIN_SECONDS = Metric(
    "train_seconds_total", "counter", "Seconds of the train part: pack, forward_backward, optimizer", ("part",),
    unit="seconds", panel="Seconds of training",
)  # fmt: skip
TRAINED_TOKENS = Metric(
    "trained_tokens_total", "counter", "Tokens that carried loss, by their lag in versions", ("lag",),
    unit="tokens", panel="Token lag",
)  # fmt: skip
MASKED_TOKENS = Metric(
    "masked_tokens_total", "counter", "Tokens without loss: older than max_staleness, by their response's length",
    ("length",), unit="tokens", panel="Masked tokens by response length",
)  # fmt: skip
WAIT_SECONDS = Metric(
    "trainer_wait_seconds_total", "counter",
    "Seconds the trainer waited, by reason and by the longest response of the oldest group that it then got",
    ("reason", "length"), unit="seconds", panel="Trainer waits by reason and length",
)  # fmt: skip
TOKEN_LAG = Metric(
    "token_lag_versions", "histogram", "Mean lag of a trained sample's generated tokens, in versions", (), SMALL,
    unit="versions", panel="Sample lag",
)  # fmt: skip
GROUP_LAG = Metric(
    "group_lag_versions", "histogram", "Lag of a group's v0 when it is trained, in versions", (), SMALL,
    unit="versions", panel="Group lag",
)  # fmt: skip
GROUP_LAG_MAX = Metric(
    "group_lag_max_versions", "gauge", "Largest group lag of the last step, in versions",
    unit="versions", panel="Group lag",
)  # fmt: skip
MIXED_SAMPLES = Metric(
    "mixed_version_samples_total", "counter", "Trained samples that more than one weight version wrote",
    unit="samples", panel="Samples of several versions",
)  # fmt: skip
TRAINED_SAMPLES = Metric(
    "trained_samples_total", "counter", "Samples trained", unit="samples", panel="Samples of several versions",
)  # fmt: skip
REWARD_MEAN = Metric(
    "trainer_reward_mean", "gauge", "Mean reward of the last step's samples", unit="reward", panel="Reward",
)  # fmt: skip
LOSS = Metric("trainer_loss", "gauge", "Loss of the last step", unit="nats", panel="Loss and gradient norm")
ENTROPY = Metric(
    "policy_entropy_nats", "gauge", "Mean entropy of the policy over trained tokens", unit="nats", panel="Entropy",
)  # fmt: skip
LOG_PROB_DIFFERENCE = Metric(
    "log_prob_difference", "gauge", "Mean |engine - trainer| log-prob, on tokens of the newest version",
    unit="nats", panel="Engine and trainer",
)  # fmt: skip
TOKEN_RATIO = Metric(
    "token_ratio", "gauge", "Mean pi / pi_rollout of trained tokens, by lag in versions", ("lag",),
    unit="ratio", panel="Importance ratio",
)  # fmt: skip
CLIP_SHARE = Metric(
    "clip_share", "gauge", "Share of trained tokens whose ratio was clipped, by their lag", ("lag",),
    unit="ratio", panel="Clipped tokens",
)  # fmt: skip
ENGINE_TRAINER_KL = Metric(
    "engine_trainer_kl", "gauge", "KL(engine || trainer) per token in nats, by lag", ("lag",),
    unit="nats", panel="Engine and trainer",
)  # fmt: skip
EFFECTIVE_SAMPLE_SIZE = Metric(
    "effective_sample_size", "gauge", "Effective share of the trained tokens under pi / pi_rollout, by lag", ("lag",),
    unit="ratio", panel="Effective sample size",
)  # fmt: skip
CORRECTION_SHARE = Metric(
    "correction_share", "gauge", "Share of trained tokens whose importance weight is bounded",
    unit="ratio", panel="Clipped tokens",
)  # fmt: skip
GRAD_NORM = Metric(
    "grad_norm", "gauge", "Gradient norm before clipping", unit="", panel="Loss and gradient norm",
)  # fmt: skip

# Trainer
TRAINER_VERSION = Metric(
    "trainer_version", "gauge", "Newest published weight version (step)", unit="versions", panel="Weight versions",
)  # fmt: skip
PUBLISH_SECONDS = Metric(
    "publish_seconds", "histogram", "Seconds an engine's weight update took",
    ("engine",), SECONDS, unit="seconds", panel="Weight updates",
)  # fmt: skip
PAUSE_SECONDS = Metric(
    "pause_seconds", "histogram", "Seconds of a weight update in which the engine generated nothing",
    ("engine",), SECONDS, unit="seconds", panel="Weight updates",
)  # fmt: skip
TRANSFER_SECONDS = Metric(
    "transfer_seconds", "histogram", "Seconds of a weight update in which weights travelled and were loaded",
    ("engine",), SECONDS, unit="seconds", panel="Weight updates",
)  # fmt: skip
ENGINE_PROBES = Metric(
    "engine_probes_total", "counter", "Log-probs asked of engines after weight updates, by what became of them",
    ("engine", "outcome"), unit="probes", panel="Probes after updates",
)  # fmt: skip

# The run, from the buffer (supervisor)
ENGINE_VERSION = Metric(
    "engine_version", "gauge", "Weight version an engine serves (step)", ("engine",),
    unit="versions", panel="Weight versions",
)  # fmt: skip
ENGINES = Metric(
    "engines", "gauge", "Engines by state: joining, serving", ("state",), unit="engines", panel="Engines in the run",
)  # fmt: skip
PRODUCERS = Metric(
    "producers", "gauge", "Producers whose heartbeat the buffer counts on", unit="processes",
    panel="Samples by producer",
)  # fmt: skip
GROUPS = Metric(
    "groups", "gauge", "Groups by state: live, complete, trained, filtered, dead_lettered", ("state",),
    unit="groups", panel="Groups by state",
)  # fmt: skip
GROUPS_LEFT_OUT = Metric(
    "groups_left_out_total", "counter", "Groups never trained: filtered or dead_lettered, by reason",
    ("state", "reason"), unit="groups", panel="Groups left out",
)  # fmt: skip
REFILLS = Metric(
    "refills_total", "counter", "Failed samples that a new attempt replaced", unit="samples", panel="Groups left out",
)  # fmt: skip
ACCOUNTING = Metric(
    "accounting_difference_groups", "gauge",
    "Admitted groups less those trained, filtered, dead-lettered and live: 0, always",
    unit="groups", panel="Accounting",
)  # fmt: skip
SAMPLES = Metric(
    "samples", "gauge", "Samples by state: pending, leased, resumable", ("state",),
    unit="samples", panel="Samples by state",
)  # fmt: skip
OLDEST_PARTIAL_SECONDS = Metric(
    "oldest_partial_seconds", "gauge", "Seconds that an unfinished sample has waited for a producer, the longest wait",
    unit="seconds", panel="Oldest lease and partial",
)  # fmt: skip
RECOVERIES = Metric(
    "recoveries_total", "counter", "Processes brought back after a death", ("process",),
    unit="processes", panel="Recoveries",
)  # fmt: skip
JOURNAL_BYTES = Metric(
    "journal_bytes", "gauge", "Bytes of all journals in the buffer", unit="bytes", panel="Redis memory",
)  # fmt: skip
REDIS_MEMORY_BYTES = Metric(
    "redis_memory_bytes", "gauge", "Memory that Redis uses, and what it may use at most", ("kind",),
    unit="bytes", panel="Redis memory",
)  # fmt: skip
SETTING = Metric(
    "setting", "gauge", "Settings in force: run_ahead, max_staleness, max_lag and the like", ("name",),
    unit="", panel="Settings in force",
)  # fmt: skip
