"""What a run plays: episodes, as their turns' tokens and the environment's seconds.

Either the groups that a run has logged, drawn again with replacement, so that siblings stay as alike as they were; or
distributions that are given: turns, tokens a turn and environment seconds are log-normal, the first two of them longer
together where the prompt is hard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from stream_rl.config_sections import Settings

__all__ = ["Episode", "GivenWorkload", "Workload"]

GROUPS_DRAWN = 512
"""Groups of a workload that is given: enough for its tails."""
LARGEST_SIGMA = 10.0
"""Of a logarithm: one value in six is then 22,000 times the median, and none is more than a float holds."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One sample, turn by turn: generated and observation tokens int64 (n,), environment seconds float64 (n,).

    The last turn's observation is 0: nothing is shown after it.
    """

    prompt: int
    generated: NDArray[np.int64]
    observation: NDArray[np.int64]
    env_seconds: NDArray[np.float64]

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return int(self.generated.sum())


class Workload:
    """Groups to draw from. Raises ValueError without any, or without a generated token."""

    def __init__(self, groups: Sequence[Sequence[Episode]]) -> None:
        if not groups:
            raise ValueError("a workload needs at least one whole group")
        self.groups = [list(group) for group in groups]
        if not any(episode.tokens for episode in self.episodes):
            raise ValueError("a workload needs episodes in which something is generated")

    def group(self, random: np.random.Generator, size: int) -> list[Episode]:
        """A group of `size` siblings: one of the groups, its episodes repeated or left out as need be."""
        drawn = self.groups[int(random.integers(len(self.groups)))]
        order = random.permutation(len(drawn))
        return [drawn[order[place % len(drawn)]] for place in range(size)]

    @property
    def episodes(self) -> list[Episode]:
        """All of them."""
        return [episode for group in self.groups for episode in group]


class GivenWorkload(Settings):
    """Distributions of what a run plays, for one that has not logged anything yet."""

    turns_median: float = Field(6.0, gt=0)
    """Turns of an episode."""
    turns_sigma: float = Field(0.7, ge=0, le=LARGEST_SIGMA)
    """Standard deviation of their logarithm; 0.7: one episode in ten has more than 2.5 times the median."""
    turns_most: int = Field(50, gt=0)
    """`rollout.max_turns`."""
    tokens_median: float = Field(300.0, gt=0)
    """Tokens that the model writes in a turn."""
    tokens_sigma: float = Field(1.0, ge=0, le=LARGEST_SIGMA)
    """Standard deviation of their logarithm."""
    tokens_most: int = Field(8192, gt=0)
    """`rollout.max_turn_len`."""
    env_median: float = Field(3.0, ge=0)
    """Seconds of an environment step."""
    env_sigma: float = Field(1.5, ge=0, le=LARGEST_SIGMA)
    """Standard deviation of their logarithm."""
    env_most: float = Field(1200.0, ge=0)
    """`environment.step_timeout`."""
    prompt: int = Field(1000, ge=0)
    """Tokens of a prompt."""
    observation: int = Field(200, ge=0)
    """Tokens of an observation."""
    context_most: int = Field(2**31 - 1, gt=0)
    """`rollout.max_context_len`: an episode ends before the turn that would not fit."""
    siblings_alike: float = Field(0.5, ge=0, le=1)
    """Share of a sample's hardness that its prompt decides, as a correlation."""
    hard_is_wordy: float = Field(0.3, ge=0, le=1)
    """Correlation of a turn's length with its sample's hardness."""

    def workload(self, seed: int, size: int, groups: int = GROUPS_DRAWN) -> Workload:
        """Groups of `size` siblings, drawn once."""
        return Workload([self.group(seed, prompt, size) for prompt in range(groups)])

    def group(self, seed: int, prompt: int, size: int) -> list[Episode]:
        """The siblings of one prompt; equal arguments give equal ones."""
        random = np.random.default_rng([seed, prompt])
        hard = random.standard_normal()
        own = random.standard_normal(size)
        share = self.siblings_alike
        return [self._episode(math.sqrt(share) * hard + math.sqrt(1 - share) * other, random) for other in own]

    def _episode(self, hardness: float, random: np.random.Generator) -> Episode:
        turns = self.turns_median * math.exp(self.turns_sigma * hardness)
        # A turn has a token at least, so there are never more turns than tokens of context.
        count = max(round(min(turns, self.turns_most, self.context_most)), 1)
        noise = math.sqrt(1 - self.hard_is_wordy**2) * random.standard_normal(count)
        lengths = self.tokens_median * np.exp(self.tokens_sigma * (self.hard_is_wordy * hardness + noise))
        generated = np.clip(np.rint(lengths), 1, self.tokens_most).astype(np.int64)
        seconds = self.env_median * np.exp(self.env_sigma * random.standard_normal(count))
        fits = self.prompt + np.cumsum(generated + self.observation) <= self.context_most
        count = max(int(fits.sum()), 1)
        observation = np.full(count, self.observation, np.int64)
        observation[-1] = 0
        return Episode(self.prompt, generated[:count], observation, np.minimum(seconds, self.env_most)[:count])
