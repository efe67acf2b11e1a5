"""Trainer: what it learns, and where its seconds go."""

from __future__ import annotations

from stream_rl.metrics import catalog
from stream_rl.metrics.dashboards.panel import Dashboard, lines, stacked
from stream_rl.metrics.dashboards.promql import growth, latest, mean, quantile, rate, share, share_of_all

__all__ = ["REWARD", "STEPS_PER_HOUR", "STEP_SECONDS", "TRAINER"]

_REWARDS = [rate(catalog.SAMPLE_REWARDS, "environment", sign=sign) for sign in ("[+]", "-")]
REWARD = lines(
    "Reward",
    "Mean reward of finished samples, once per trajectory, and of the last step's. Flat at 0: no sample ever succeeds, "
    "make the task easier at first; a sudden fall: see Entropy, Engine and trainer, and the annotations.",
    (
        f"({' - '.join(_REWARDS)}) / {rate(catalog.SAMPLE_REWARD, 'environment', suffix='_count')}",
        "mean {{environment}}",
    ),
    (quantile(0.9, catalog.SAMPLE_REWARD, "environment"), "p90 {{environment}}"),
    (latest(catalog.REWARD_MEAN), "last step"),
)
STEP_SECONDS = stacked(
    "Seconds per step",
    "What a step's seconds are spent on. A tall wait: rollouts are the slower side, add engines or producers, or raise "
    "run_ahead; none: the trainer is. A tall publish: transfer weights by a process group instead of from disk.",
    (share_of_all(rate(catalog.STEP_SECONDS, "part"), rate(catalog.STEPS)), "{{part}}"),
    unit="s",
)
STEPS_PER_HOUR = lines(
    "Steps per hour",
    "Zero while the run lives: the trainer is stalled, see the alert's runbook. A fall without a fall of tokens a "
    "second: samples got longer.",
    (f"3600 * {rate(catalog.STEPS)}", "steps"),
)

TRAINER = Dashboard(
    "trainer",
    "Trainer",
    "What is learned, whether the two sides agree on probabilities, and where the trainer's seconds go.",
    [
        REWARD,
        lines(
            "Loss and gradient norm",
            "Of the last step. A norm that keeps growing announces divergence: lower the learning rate, or clip lower "
            "(trainer.max_grad_norm). The loss itself says little in policy gradients.",
            (latest(catalog.LOSS), "loss"),
            (latest(catalog.GRAD_NORM), "gradient norm"),
        ),
        lines(
            "Entropy",
            "Mean entropy of the policy over trained tokens, nats. Near 0 early: exploration has ended; raise "
            "trainer.entropy_coefficient. Rising without end: the policy drifts into noise.",
            (latest(catalog.ENTROPY), "entropy"),
        ),
        lines(
            "Engine and trainer",
            "KL from the engine's policy to the trainer's by lag, and the mean difference of log-probs under equal "
            "weights. Lag 0 is arithmetic alone: about 1e-7 in float32, 1e-3 in bfloat16; more: wrong weights.",
            (latest(catalog.ENGINE_TRAINER_KL, "lag"), "KL, lag {{lag}}"),
            (latest(catalog.LOG_PROB_DIFFERENCE), "log-prob difference, same weights"),
        ),
        STEP_SECONDS,
        stacked(
            "Seconds of training",
            "The train part of a step. A tall pack: very many short samples, raise max_tokens_per_micro_batch; "
            "forward_backward is what the machine is for.",
            (share_of_all(rate(catalog.TRAIN_SECONDS, "part"), rate(catalog.STEPS)), "{{part}}"),
            unit="s",
        ),
        lines(
            "Rollout to training time",
            "Seconds of a step over its training seconds. 1: rollouts are always ahead of the trainer; 3: two thirds "
            "of the trainer's time are spent waiting, publishing and saving.",
            (share(rate(catalog.STEP_SECONDS), rate(catalog.STEP_SECONDS, part="load|train")), "ratio"),
        ),
        STEPS_PER_HOUR,
        lines(
            "Weight versions",
            "The newest published version and what each engine serves. An engine that stays behind takes no updates: "
            "it is put out and brought back; if it is not, see its log.",
            (latest(catalog.TRAINER_VERSION), "trainer"),
            (latest(catalog.ENGINE_VERSION, "engine"), "{{engine}}"),
        ),
        lines(
            "Weight updates",
            "Seconds that an engine's update took, in which it stood still, and in which weights travelled. Transfer "
            "growing with the model: use a process group; a few slow ones: the disk of one machine.",
            (quantile(0.95, catalog.PUBLISH_SECONDS, "engine"), "p95 {{engine}}"),
            (mean(catalog.PAUSE_SECONDS), "pause, mean"),
            (mean(catalog.TRANSFER_SECONDS), "transfer, mean"),
            unit="s",
        ),
        lines(
            "Settings in force",
            "The knobs of scheduling, as the buffer enforces them. A step in a line is a live change: it is annotated "
            "on every dashboard.",
            (latest(catalog.SETTING, "name"), "{{name}}"),
        ),
        lines(
            "Steps in the window",
            "Steps that the chosen window holds: the panels above are means over them. None: choose a longer one.",
            (growth(catalog.STEPS), "steps"),
        ),
    ],
)  # fmt: skip
