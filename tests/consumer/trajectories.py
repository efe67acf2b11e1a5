"""Ragged groups for the trainer's tests: several turns, observations, version spans, stale tokens, own temperatures."""

from __future__ import annotations

import numpy as np

from stream_rl.sample import Group, Sample, Turn, VersionSpan, WeightVersion

VOCABULARY = 32


def ragged_groups(count: int, *, seed: int = 0, group_size: int = 4, newest: int = 9, oldest: int = 2) -> list[Group]:
    """`count` groups whose tokens were written by versions `oldest`..`newest`."""
    random = np.random.default_rng(seed)
    return [
        Group(number, oldest, [_sample(random, number, index, oldest, newest) for index in range(group_size)], number)
        for number in range(count)
    ]


def turn(index: int, generated: list[int], observation: list[int], version: int = 0, log_prob: float = -1.0) -> Turn:
    """A complete turn by one version."""
    return Turn(
        index,
        np.array(generated, np.int32),
        np.full(len(generated), log_prob, np.float32),
        np.array(observation, np.int32),
        (VersionSpan(0, len(generated), WeightVersion(version)),),
    )


def sample_of(turns: list[Turn], *, group: int = 0, index: int = 0, prompt: int = 3, reward: float = 1.0) -> Sample:
    """A finished sample with a prompt of `prompt` tokens."""
    sample = Sample(group, index, "prompt", np.arange(6, 6 + prompt, dtype=np.int32), reward=reward)
    for part in turns:
        sample.append(part)
    return sample


def _sample(random: np.random.Generator, group: int, index: int, oldest: int, newest: int) -> Sample:
    prompt = random.integers(0, VOCABULARY, random.integers(1, 9)).astype(np.int32)
    temperature = float(random.choice([0.7, 1.0, 1.3]))
    reward = float(random.choice([0.0, 0.1, 1.0]))
    sample = Sample(group, index, "prompt", prompt, temperature=temperature, reward=reward)
    version = int(random.integers(oldest, newest + 1))
    turns = int(random.integers(1, 5))
    for number in range(turns):
        last = number == turns - 1
        version = int(random.integers(version, newest + 1))
        sample.append(_turn(random, number, version, newest, observation=0 if last else int(random.integers(1, 7))))
    sample.check()
    return sample


def _turn(random: np.random.Generator, number: int, version: int, newest: int, observation: int) -> Turn:
    length = int(random.integers(1, 7))
    cut = int(random.integers(0, length + 1))
    later = min(version + 1, newest)
    spans = (VersionSpan(0, cut, WeightVersion(version)), VersionSpan(cut, length, WeightVersion(later)))
    return Turn(
        number,
        random.integers(0, VOCABULARY, length).astype(np.int32),
        random.normal(-3.4, 0.3, length).astype(np.float32),
        random.integers(0, VOCABULARY, observation).astype(np.int32),
        tuple(span for span in spans if span.end > span.start),
        reward=0.1 * length,
    )
