"""Workloads: given ones keep their limits and are reproducible; groups are drawn as they were."""

from __future__ import annotations

import numpy as np
import pytest

from stream_rl.tuning import Episode, GivenWorkload, Workload

GIVEN = GivenWorkload(turns_most=9, tokens_most=800, env_most=20.0, context_most=6000, prompt=100, observation=50)


def test_equal_arguments_give_equal_groups() -> None:
    first, again, other = (GIVEN.group(3, prompt, 4) for prompt in (5, 5, 6))
    assert [e.generated.tolist() for e in first] == [e.generated.tolist() for e in again]
    assert [e.generated.tolist() for e in first] != [e.generated.tolist() for e in other]


def test_limits_are_kept() -> None:
    episodes = GIVEN.workload(0, 8, 200).episodes
    assert max(len(e.generated) for e in episodes) == 9
    assert max(int(e.generated.max()) for e in episodes) == 800
    assert max(float(e.env_seconds.max()) for e in episodes) == 20.0
    for episode in episodes:
        assert episode.observation[-1] == 0
        assert len(episode.generated) == 1 or episode.prompt + episode.tokens + episode.observation.sum() <= 6000
        assert len(episode.generated) == len(episode.observation) == len(episode.env_seconds)


def test_medians_are_those_given() -> None:
    turns = [len(e.generated) for e in GivenWorkload().workload(1, 8, 400).episodes]
    assert np.median(turns) == 6
    tokens = np.concatenate([e.generated for e in GivenWorkload(hard_is_wordy=0).workload(1, 8, 400).episodes])
    assert 285 < np.median(tokens) < 315


@pytest.mark.parametrize("alike", [0.0, 1.0])
def test_siblings_are_as_alike_as_asked(alike: float) -> None:
    groups = GivenWorkload(siblings_alike=alike).workload(2, 2, 400).groups
    first, second = np.array([[np.log(len(e.generated)) for e in group] for group in groups]).T
    assert np.corrcoef(first, second)[0, 1] == pytest.approx(alike, abs=0.1)


def test_a_group_is_drawn_whole_and_filled_up() -> None:
    one, two = (Episode(1, np.array([n]), np.zeros(1, np.int64), np.zeros(1)) for n in (1, 2))
    workload = Workload([[one, two]])
    drawn = workload.group(np.random.default_rng(0), 4)
    assert sorted(e.tokens for e in drawn) == [1, 1, 2, 2]
    with pytest.raises(ValueError, match="at least one whole group"):
        Workload([])
