"""Every figure of summary.json, from a run folder written by hand: a replay, a torn line, a restart, a lost turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from run_folders import sample_record, step_record, turn_record

from stream_rl.metrics.summary import RunFacts, lost_turns, moving_mean, summarise
from stream_rl.metrics.turn_log import JsonLines


def step(number: int, reward: float, **fields: Any) -> dict[str, Any]:
    return {**step_record(number, np.random.default_rng(0)), "reward_mean": reward, **fields}


def write(path: Path, *records: dict[str, Any]) -> None:
    with JsonLines(path) as log:
        log.extend(records)


def test_the_last_line_of_a_replayed_step_counts(tmp_path: Path) -> None:
    write(
        tmp_path / "steps.jsonl",
        step(1, 0.0, groups=[0, 1], generated_tokens=10, masked_tokens=1, group_lag_max=0),
        step(2, 0.9, groups=[2, 3], generated_tokens=99, masked_tokens=9, group_lag_max=9),
        step(2, 0.5, groups=[2, 3], generated_tokens=20, masked_tokens=2, group_lag_max=2, incarnation=1),
    )
    summary = summarise(tmp_path, RunFacts())
    assert summary["steps"] == 2
    assert summary["trained_groups"] == 4
    assert summary["trained_twice"] == 0
    assert (summary["generated_tokens"], summary["masked_tokens"]) == (30, 3)
    assert summary["max_group_lag"] == 2
    assert summary["reward_last5"] == 0.25


def test_a_group_in_two_steps_is_found(tmp_path: Path) -> None:
    write(
        tmp_path / "steps.jsonl", step(1, 0.0, groups=[0, 1]), step(2, 0.0, groups=[1, 2]), step(3, 0.0, groups=[5, 5])
    )
    summary = summarise(tmp_path, RunFacts())
    assert summary["trained_groups"] == 4
    assert summary["trained_twice"] == 2


def test_rewards_are_five_step_means(tmp_path: Path) -> None:
    rewards = [0.0, 0.1, 0.2, 0.3, 0.4, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]
    write(tmp_path / "steps.jsonl", *(step(number, reward) for number, reward in enumerate(rewards, 1)))
    summary = summarise(tmp_path, RunFacts())
    assert summary["reward_first5"] == pytest.approx(0.2)
    assert summary["reward_best5"] == pytest.approx(1.0)
    assert summary["reward_last5"] == pytest.approx(0.9)


def test_a_short_run_has_one_mean(tmp_path: Path) -> None:
    write(tmp_path / "steps.jsonl", step(1, 1.0), step(2, 0.0))
    summary = summarise(tmp_path, RunFacts())
    assert summary["reward_first5"] == summary["reward_best5"] == summary["reward_last5"] == 0.5


def test_maxima_are_over_all_steps(tmp_path: Path) -> None:
    write(
        tmp_path / "steps.jsonl",
        step(1, 0.0, versions_max=3, trained_token_lag_max=1),
        step(2, 0.0, versions_max=2, trained_token_lag_max=2),
    )
    summary = summarise(tmp_path, RunFacts())
    assert summary["max_versions_in_sample"] == 3
    assert summary["max_trained_token_lag"] == 2


def test_facts_are_passed_on(tmp_path: Path) -> None:
    facts = RunFacts({"engine": 2}, committed_turns=7, eval_reward=0.25, wall_seconds=1.23456)
    summary = summarise(tmp_path, facts)
    assert summary["recoveries"] == {"engine": 2}
    assert (summary["committed_turns"], summary["eval_reward"], summary["wall_seconds"]) == (7, 0.25, 1.235)


def test_an_empty_run_has_no_rewards(tmp_path: Path) -> None:
    summary = summarise(tmp_path, RunFacts())
    assert summary["steps"] == summary["max_group_lag"] == 0
    assert summary["reward_best5"] is None
    assert orjson.loads((tmp_path / "summary.json").read_bytes()) == summary


def test_a_turn_that_nothing_holds_is_lost(tmp_path: Path) -> None:
    write(tmp_path / "turns" / "a.jsonl", *(turn_record(0, 0, turn, ["1"]) for turn in range(3)))
    write(tmp_path / "turns" / "b.jsonl", turn_record(0, 1, 0, ["1"]), turn_record(0, 1, 1, ["1"]))
    write(tmp_path / "samples.jsonl", sample_record(1, 0, 0, turns=2))
    assert summarise(tmp_path, RunFacts(journal_turns={"0-1": 1}))["lost_turns"] == 2
    assert summarise(tmp_path, RunFacts(journal_turns={"0-1": 2, "0-0": 3}))["lost_turns"] == 0


def test_what_was_lost_is_not_known_without_a_turn_log(tmp_path: Path) -> None:
    write(tmp_path / "samples.jsonl", sample_record(1, 0, 0, turns=2))
    assert summarise(tmp_path, RunFacts(committed_turns=2))["lost_turns"] is None
    write(tmp_path / "turns" / "a.jsonl")
    assert summarise(tmp_path, RunFacts(committed_turns=2))["lost_turns"] == 0


def test_an_end_written_twice_and_a_torn_line_change_nothing(tmp_path: Path) -> None:
    write(tmp_path / "turns" / "a.jsonl", turn_record(0, 0, 0, ["1"]), turn_record(0, 0, 0, ["1"]))
    write(tmp_path / "samples.jsonl", sample_record(1, 0, 0, turns=1), sample_record(1, 0, 0, turns=1))
    with (tmp_path / "turns" / "a.jsonl").open("ab") as log:
        log.write(b'{"sample": "0-0", "turn": 5')
    assert summarise(tmp_path, RunFacts())["lost_turns"] == 0


def test_the_turns_before_a_restart_are_not_lost() -> None:
    turns = [turn_record(0, 0, turn, ["1"]) for turn in range(4)]
    restarted = {**sample_record(1, 0, 0, turns=4), "kind": "restarted"}
    assert lost_turns(turns, [restarted, sample_record(2, 0, 0, turns=1)], {}) == 0


def test_a_cut_turn_counts_when_it_is_complete() -> None:
    cut = {**turn_record(0, 0, 1, ["1"]), "complete": False}
    assert lost_turns([turn_record(0, 0, 0, ["1"]), cut], [], {"0-0": 1}) == 0
    assert lost_turns([turn_record(0, 0, 0, ["1"]), cut, turn_record(0, 0, 1, ["2"])], [], {"0-0": 1}) == 1


def test_attempts_are_told_apart() -> None:
    first, second = turn_record(0, 0, 0, ["1"]), {**turn_record(0, 0, 0, ["1"]), "sample": "0-0-1"}
    assert lost_turns([first, second], [sample_record(1, 0, 0, turns=1)], {}) == 1


def test_a_moving_mean_starts_with_what_there_is() -> None:
    assert moving_mean([1.0, 3.0, 5.0], 2) == [1.0, 2.0, 4.0]
    assert moving_mean([], 5) == []
