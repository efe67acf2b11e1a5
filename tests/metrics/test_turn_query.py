"""Percentiles and filters over a turn log, against the same counted by hand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from run_folders import turn_record

from stream_rl.errors import ConfigError
from stream_rl.metrics.run_folder import turn_records
from stream_rl.metrics.turn_log import JsonLines, read
from stream_rl.metrics.turn_query import MEASURES, TurnQuery
from stream_rl.metrics.turn_schema import TURN_FIELDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two producers, one of which has put logs aside; 300 turns."""
    folder = tmp_path_factory.mktemp("run")
    random = np.random.default_rng(0)
    for producer in ("producer-0", "producer-1"):
        with JsonLines(folder / "turns" / f"{producer}.jsonl", most_bytes=20_000) as log:
            for number in range(150):
                seconds = {measure: float(random.exponential()) for measure in MEASURES if measure.endswith("seconds")}
                group = number // 4 + (1000 if producer == "producer-1" else 0)
                log.append({**turn_record(group, number % 4, number % 3, ["1", "2"], number), **seconds})
    assert (folder / "turns" / "producer-0.0001.jsonl").exists()
    return folder


def test_all_turns_of_all_files_are_asked(folder: Path) -> None:
    answer = TurnQuery(folder).percentiles(None, [50, 99])
    assert answer.columns == ["turns", "measure", "count", "mean", "p50", "p99", "max"]
    assert [row[1] for row in answer.rows] == list(MEASURES)
    records = list(turn_records(folder))
    for row in answer.rows:
        values = [record[row[1]] for record in records]
        assert row[2] == 300
        assert row[3:] == pytest.approx([np.mean(values), *np.percentile(values, [50, 99]), max(values)])


def test_turns_are_told_apart_and_filtered(folder: Path) -> None:
    query = TurnQuery(folder, ["env_seconds > 0.5", "producer = 'producer-1'"])
    answer = query.percentiles("turn", [95], ["env_seconds"])
    log = [record for path in (folder / "turns").glob("producer-1*") for record in _read(path)]
    for turn, _, count, *_, most in answer.rows:
        values = [one["env_seconds"] for one in log if one["turn"] == turn and one["env_seconds"] > 0.5]
        assert (count, most) == (len(values), pytest.approx(max(values)))
    assert [row[0] for row in answer.rows] == [0, 1, 2]


def _read(path: Path) -> list[dict[str, float]]:
    return list(read(path))


def test_the_longest_come_first(folder: Path) -> None:
    answer = TurnQuery(folder).longest("commit_seconds", 5)
    column = answer.columns.index("commit_seconds")
    longest = sorted((record["commit_seconds"] for record in turn_records(folder)), reverse=True)[:5]
    assert [row[column] for row in answer.rows] == pytest.approx(longest)
    assert {row[answer.columns.index("version")] for row in answer.rows} == {"2"}


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    with JsonLines(tmp_path / "turns" / "p.jsonl") as log:
        log.append(turn_record(0, 0, 0, ["1"]))
    with (tmp_path / "turns" / "p.jsonl").open("ab") as torn:
        torn.write(b'{"time":17')
    assert TurnQuery(tmp_path).percentiles(None, [50]).rows[0][2] == 1


def pieces(folder: Path) -> Path:
    """Turn 0 in two records of two producers, turn 1 whole; before, the sample was restarted after two turns."""
    before = [{**turn_record(3, 1, turn, ["1"]), "time": 1.0 + turn, "env_seconds": 9.0} for turn in range(2)]
    begun = {**turn_record(3, 1, 0, ["1"]), "complete": False, "finish_reason": "abort", "env_seconds": 0.0}
    ended = {**turn_record(3, 1, 0, ["2"]), "position": 2}
    last = {**turn_record(3, 1, 1, ["10"]), "position": 3}
    with JsonLines(folder / "turns" / "producer-2.jsonl") as log:
        log.extend([*before, {**begun, "time": 3.0}])
    with JsonLines(folder / "turns" / "producer-10.jsonl") as log:
        log.extend([{**ended, "time": 4.0}, {**last, "time": 5.0}])
    return folder


def test_a_turn_in_several_records_is_one_and_what_a_restart_replaced_is_none(tmp_path: Path) -> None:
    query = TurnQuery(pieces(tmp_path))
    counts = {row[1]: (row[2], row[3] * row[2]) for row in query.percentiles(None, [50]).rows}
    assert counts["generate_seconds"] == (2, pytest.approx(0.06))
    assert counts["env_seconds"] == (2, pytest.approx(0.0002))
    assert counts["generated"] == (2, 6)
    (first, second) = query.longest("generate_seconds", 5).rows
    assert first[:6] == ("3-1", 0, "producer-10", "guess_number", "2", "stop")
    assert second[:2] == ("3-1", 1)


def test_a_turn_that_was_only_begun_is_known_by_its_reason(tmp_path: Path) -> None:
    with JsonLines(tmp_path / "turns" / "p.jsonl") as log:
        log.append({**turn_record(3, 1, 0, ["1"]), "complete": False, "finish_reason": "chunk"})
    assert TurnQuery(tmp_path, ["not complete", "finish_reason = 'chunk'"]).longest("generated", 1).rows


@pytest.mark.parametrize(("by", "shown"), [("version", ["2", "10"]), ("producer", ["producer-2", "producer-10"])])
def test_numbers_in_names_are_ordered_as_numbers(tmp_path: Path, by: str, shown: list[str]) -> None:
    with JsonLines(tmp_path / "turns" / "producer-2.jsonl") as log:
        log.append(turn_record(0, 0, 0, ["2"]))
    with JsonLines(tmp_path / "turns" / "producer-10.jsonl") as log:
        log.append(turn_record(0, 1, 0, ["10"]))
    assert [row[0] for row in TurnQuery(tmp_path).percentiles(by, [50], ["generated"]).rows] == shown


def test_a_condition_that_is_none_names_the_fields(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"--where cannot be asked: .*envseconds.*; fields: time, sample"):
        TurnQuery(folder, ["envseconds > 1"]).percentiles(None, [50])


def test_a_run_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.turn_log is false"):
        TurnQuery(tmp_path)


def test_the_schema_is_what_is_written_and_what_is_documented() -> None:
    assert list(TURN_FIELDS) == list(turn_record(0, 0, 0, ["1"]))
    page = (Path(__file__).parents[2] / "docs" / "turn-log.md").read_text()
    documented = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", page, re.MULTILINE))
    assert documented == {name: meaning for name, (_, meaning) in TURN_FIELDS.items()}
