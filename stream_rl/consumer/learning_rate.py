"""The learning rate of a step: a pure function of its number, so that a replayed or resumed step has the same one."""

from __future__ import annotations

import math

from stream_rl.config import TrainerConfig

__all__ = ["learning_rate"]


def learning_rate(settings: TrainerConfig, step: int) -> float:
    """The rate of every optimizer update of a step.

    It rises linearly over the first `warmup_steps`, then stays or falls over the steps that are left. As in Hugging
    Face's schedules, the final rate is that after the last step, so that with a final share of 0 no step is without
    effect.

    Args:
        settings: the rate at its highest, its shape and its end. Other `steps` give another curve.
        step: from 1.
    """
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    progress = min(1.0, (step - 1 - warmup) / max(1, settings.steps - warmup))
    match settings.learning_rate_schedule:
        case "constant":
            return peak
        case "linear":
            left = 1.0 - progress
        case "cosine":
            left = (1.0 + math.cos(math.pi * progress)) / 2.0
    share = settings.final_learning_rate_share
    return peak * (share + (1.0 - share) * left)
