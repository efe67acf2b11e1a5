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
                log.append({**turn_record(number // 4, number % 4, number % 3, ["1", "2"], number), **seconds})
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
