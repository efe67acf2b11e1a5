"""The account finds every loss that is put before it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crashes.account import Account, account
from measures.bars import Bar, ratios

from stream_rl.metrics.turn_log import JsonLines

DEATHS = [10.0, 20.0]


class History:
    """A run's logs as they are written: acknowledged turns of one producer, and trained steps."""

    def __init__(self, folder: Path) -> None:
        self._turns = JsonLines(folder / "turns.jsonl")
        self._trained = JsonLines(folder / "trained.jsonl")

    def acknowledge(self, sample: str, *positions: int, at: float = 1.0) -> None:
        self._turns.extend({"sample": sample, "position": position, "time": at} for position in positions)

    def train(self, step: int, groups: list[int], *, at: float = 30.0, replayed: bool = False) -> None:
        records = {f"{group}-0": 4 for group in groups}
        line = {"step": step, "groups": groups, "records": records, "time": at, "replayed": replayed}
        self._trained.append(line)

    def account(self, *given_up: str, admitted: int = 2) -> Account:
        ended: Any = SimpleNamespace(admitted=admitted, dead_lettered=0, filtered=0)
        return account([self._turns.path], self._trained.path, DEATHS, set(given_up), ended, cut=0.0)


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Groups 0 and 1, three turns each, acknowledged before the first death and trained in one step."""
    made = History(tmp_path)
    made.acknowledge("0-0", 1, 2, 3)
    made.acknowledge("1-0", 1, 2, 3)
    made.train(1, [0, 1])
    return made


def test_nothing_is_lost(history: History) -> None:
    found = history.account()
    assert (found.committed, found.lost, found.oldest_lost, found.steps) == (6, 0, 0.0, 1)
    assert (found.replayed, found.twice, found.changed, found.given_up) == (0, 0, 0, 0)


def test_a_turn_beyond_what_was_trained_is_lost(history: History) -> None:
    history.acknowledge("0-0", 4, at=19.5)
    found = history.account()
    assert (found.lost, found.oldest_lost) == (1, 0.5)


def test_a_turn_acknowledged_again_was_lost_the_first_time(history: History) -> None:
    history.acknowledge("0-0", 3, at=12.0)
    found = history.account()
    assert (found.lost, found.oldest_lost) == (1, 9.0)


def test_a_line_written_just_after_the_death_belongs_to_it(history: History) -> None:
    history.acknowledge("0-0", 4, at=20.01)
    assert history.account().oldest_lost == 0.0


def test_a_loss_that_no_death_explains_is_older_than_any_bound(history: History) -> None:
    history.acknowledge("0-0", 4, at=21.0)
    assert history.account().oldest_lost == float("inf")


def test_turns_of_attempts_given_up_are_not_lost(history: History) -> None:
    history.acknowledge("2-0", 1, 2)
    found = history.account("2-0")
    assert (found.committed, found.lost, found.given_up) == (6, 0, 1)


def test_a_replay_is_no_second_training(history: History) -> None:
    history.train(2, [2])
    history.train(2, [2], replayed=True)
    found = history.account(admitted=3)
    assert (found.steps, found.replayed, found.twice, found.changed) == (2, 1, 0, 0)


def test_a_replay_of_other_groups_is_counted(history: History) -> None:
    history.train(2, [2])
    history.train(2, [3], replayed=True)
    assert history.account(admitted=3).changed == 1


def test_a_step_lost_with_its_trainer_is_taken_anew(history: History) -> None:
    history.train(2, [2])
    history.train(2, [3])
    assert history.account(admitted=3).changed == 0


def test_a_turn_played_again_after_its_sample_was_read_is_not_lost(history: History) -> None:
    history.acknowledge("0-0", 3, at=31.0)
    found = history.account()
    assert (found.lost, found.again) == (0, 1)


def test_a_group_of_two_steps_is_counted(history: History) -> None:
    history.train(2, [1])
    assert history.account().twice == 1


def test_a_group_that_no_step_trained_is_an_error(history: History) -> None:
    with pytest.raises(AssertionError, match="never trained"):
        history.account(admitted=3)


def test_a_bar_is_held_by_the_median_of_its_rounds() -> None:
    paired = ratios([10.0, 12.0, 30.0], [5.0, 4.0, 3.0])
    assert paired == [2.0, 3.0, 10.0]
    assert Bar("speed", paired, least=3.0).held
    assert not Bar("speed", paired, least=3.1).held
    assert not Bar("size", paired, most=2.0).held


def test_a_longer_history_that_was_lost_trained_nothing(history: History) -> None:
    history.train(2, [2], at=31.0)
    history.train(3, [3], at=32.0)
    history.train(2, [3], at=33.0)
    found = history.account(admitted=3)
    assert (found.steps, found.twice, found.changed) == (2, 0, 0)
