"""Advantages. Always per group: rewards of different prompts are never compared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-4


def group_advantages(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """GRPO: how much better a sample did than its siblings, in the group's standard deviations.

    Args:
        rewards: float64 (groups, group_size), one row per group.

    Returns:
        float64 (groups, group_size), (reward - mean) / (std + 1e-4) with the population's std; zero for a group whose
        rewards are all equal.

    Source: Shao et al. 2024, "DeepSeekMath", section 4.1 (outcome supervision).
    """
    assert rewards.ndim == 2, rewards.shape
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    # Equal rewards leave rounding noise of about 1e-17, which the division must not turn into a direction.
    centred[np.ptp(rewards, axis=1) == 0.0] = 0.0
    advantages: NDArray[np.float64] = centred / (rewards.std(axis=1, keepdims=True) + EPSILON)
    return advantages
