"""Advantages. Always per group: rewards of different prompts are never compared.

An episode is credited as a whole, or turn by turn: then a turn is compared with the same turn of its siblings.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stream_rl.config import TrainerConfig
from stream_rl.config_trainer import AdvantageKind
from stream_rl.consumer.batching import Floats, Samples, per_sample

__all__ = ["group_advantages", "rewards_to_go", "token_advantages", "turn_advantages"]

EPSILON = 1e-4


def group_advantages(rewards: Floats, kind: AdvantageKind = "grpo") -> Floats:
    """How much better each sample did than its siblings.

    Args:
        rewards: float64 (groups, group_size), one row per group.
        kind: what is done to reward - mean:
            grpo     over (std + 1e-4), the population's std (Shao et al. 2024, "DeepSeekMath", section 4.1.2)
            dr_grpo  nothing, so that easy and hard prompts are not weighed up (Liu et al. 2025, "Understanding
                     R1-Zero-like training", section 3.2)
            rloo     times n / (n - 1), which makes it reward - mean of the others (Kool et al. 2019, "Buy 4 REINFORCE
                     samples, get a baseline for free!"; Ahmadian et al. 2024, "Back to basics")

    Returns:
        float64 (groups, group_size); zero for a group whose rewards are all equal.
    """
    assert rewards.ndim == 2, rewards.shape
    centred: Floats = rewards - rewards.mean(axis=1, keepdims=True)
    # Equal rewards leave rounding noise of about 1e-17, which the division must not turn into a direction.
    centred[np.ptp(rewards, axis=1) == 0.0] = 0.0
    match kind:
        case "grpo":
            centred /= rewards.std(axis=1, keepdims=True) + EPSILON
        case "rloo":
            centred *= rewards.shape[1] / max(1, rewards.shape[1] - 1)
    return centred


def rewards_to_go(rewards: Floats, discount: float) -> Floats:
    """Each turn's reward and those of the later turns, discounted: float64 (n, turns) from the same shape.

    Source: Sutton and Barto 2018, "Reinforcement Learning", equation 3.8, with turns for time steps.
    """
    credited = rewards.copy()
    for turn in range(rewards.shape[1] - 2, -1, -1):
        credited[:, turn] += discount * credited[:, turn + 1]
    return credited


def turn_advantages(returns: Floats, turns: NDArray[np.int64], kind: AdvantageKind) -> Floats:
    """How much better each turn of one group went than the same turn of the siblings that came so far.

    Args:
        returns: float64 (group_size, turns), what each turn is credited with.
        turns: int64 (group_size,), how many turns each sibling had.
        kind: as for `group_advantages`.

    Returns:
        float64 (group_size, turns); zero where a sample had no such turn, or was the only one.

    Source: Zeng et al. 2025, "Reinforcing multi-turn reasoning in LLM agents via turn-level reward design".
    """
    advantages = np.zeros_like(returns)
    for turn in range(returns.shape[1]):
        present = turns > turn
        if present.any():
            advantages[present, turn] = group_advantages(returns[present, turn][np.newaxis], kind)[0]
    return advantages


def token_advantages(samples: Samples, settings: TrainerConfig, penalties: Floats | None = None) -> NDArray[np.float32]:
    """The advantage of every token of some groups' samples, as the settings say.

    Args:
        samples: whole groups.
        settings: `advantage` and `turn_discount`.
        penalties: float64 (t,), taken from the rewards of the token's sample or turn.

    Returns:
        float32 (t,); without meaning where nothing was generated.
    """
    if settings.turn_discount is None:
        rewards = samples.rewards
        if penalties is not None:
            rewards = rewards - per_sample(np.add, penalties, samples.lengths)
        by_sample = group_advantages(rewards.reshape(-1, samples.group_size), settings.advantage).ravel()
        return np.repeat(by_sample, samples.lengths).astype(np.float32)
    sample_of, turn_rewards = np.repeat(np.arange(len(samples.lengths)), samples.lengths), samples.turn_rewards.copy()
    if penalties is not None:
        np.subtract.at(turn_rewards, (sample_of, samples.turns), np.where(samples.generated, penalties, 0.0))
    returns = rewards_to_go(turn_rewards, settings.turn_discount)
    turns = per_sample(np.maximum, samples.turns, samples.lengths) + 1
    groups = [slice(row, row + samples.group_size) for row in range(0, len(turns), samples.group_size)]
    by_turn = [turn_advantages(returns[group], turns[group], settings.advantage) for group in groups]
    table: Floats = np.concatenate([np.zeros((0, returns.shape[1])), *by_turn])
    return table[sample_of, samples.turns].astype(np.float32)
