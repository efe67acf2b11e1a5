"""The update learns: a one-turn game in which the right answer is the prompt's last word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stream_rl.config import ModelConfig, TrainerConfig
from stream_rl.consumer.batching import flatten, mini_batch_groups
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.micro_batch import empty_micro_batch
from stream_rl.consumer.model import Policy
from stream_rl.consumer.update import Updater
from stream_rl.sample import Group, Sample, Turn, VersionSpan, WeightVersion

CPU = torch.device("cpu")
WORDS = (11, 12, 13, 14)
VOCABULARY = 32
GROUP_SIZE = 64
STEPS = 30


def distributions(policy: Policy) -> torch.Tensor:
    """Log-probs of every next token after each prompt, (4, vocabulary)."""
    count = len(WORDS) * VOCABULARY
    tokens = torch.tensor([[3, word] for word in WORDS]).repeat_interleave(VOCABULARY, dim=0)
    batch = replace(
        empty_micro_batch(),
        tokens=tokens.view(1, -1),
        positions=torch.arange(2).repeat(1, count),
        lengths=(2,) * count,
        predictors=torch.arange(count) * 2 + 1,
        targets=torch.arange(VOCABULARY).repeat(len(WORDS)),
        temperatures=torch.ones(count),
    )
    with torch.no_grad():
        return policy(batch)[0].view(len(WORDS), VOCABULARY)


def play(policy: Policy, random: np.random.Generator, version: int) -> list[Group]:
    """Four groups, one for each word."""
    groups = []
    for number, (word, log_probs) in enumerate(zip(WORDS, distributions(policy).numpy(), strict=True)):
        shares = np.exp(log_probs.astype(np.float64))
        samples = []
        for index, token in enumerate(random.choice(VOCABULARY, GROUP_SIZE, p=shares / shares.sum())):
            sample = Sample(number, index, "", np.array([3, word], np.int32), reward=float(token == word))
            span = (VersionSpan(0, 1, WeightVersion(version)),)
            generated = np.array([token], np.int32)
            sample.append(Turn(0, generated, log_probs[[token]], np.zeros(0, np.int32), span))
            samples.append(sample)
        groups.append(Group(number, version, samples))
    return groups


@pytest.mark.usefixtures("one_rank")
def test_reward_rises_from_chance_to_nearly_always(model_path: Path) -> None:
    settings = TrainerConfig(learning_rate=5e-3, entropy_coefficient=0.03, mini_batches=2)
    updater = Updater(load_policy(ModelConfig(path=str(model_path)), CPU), settings, CPU)
    random = np.random.default_rng(0)
    rewards, differences = [], []
    for step in range(1, STEPS + 1):
        groups = play(updater.policy, random, step - 1)
        rewards.append(np.mean([sample.reward for group in groups for sample in group.samples]))
        dealt = mini_batch_groups(groups, settings.mini_batches)
        figures = updater.step([flatten(part, trainer_version=step - 1, max_staleness=0) for part in dealt], step)
        differences.append(figures.log_prob_difference)
    assert rewards[0] < 0.15
    assert np.mean(rewards[-5:]) > 0.9
    assert max(differences) < 1e-5
