"""The report: whole without a network, and true to the run's records."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from run_folders import STEPS, config, sample_record, step_record, turn_record, write_run

from stream_rl.errors import ConfigError
from stream_rl.metrics.plots import panels
from stream_rl.metrics.report import render, tiles, trajectories, write_report
from stream_rl.metrics.run_folder import LoggedTurn, RunRecords
from stream_rl.metrics.turn_log import JsonLines


class Page(HTMLParser):
    """What a browser would fetch, and the text that it would show."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: set[str] = set()
        self.text = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        known = dict(attributes)
        self.ids |= {known["id"] or ""} if "id" in known else set()
        self.fetched += [value or "" for name, value in attributes if name in ("src", "href", "data", "srcset")]

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module")
def run(run_folder: Path) -> RunRecords:
    return RunRecords.load(run_folder)


@pytest.fixture(scope="module")
def page(run: RunRecords) -> Page:
    return Page(render(run))


def test_nothing_is_fetched(page: Page) -> None:
    assert page.fetched == []


def test_every_panel_has_its_place(run: RunRecords, page: Page) -> None:
    drawn = panels(run)
    assert {f"plot-{place}" for place in range(len(drawn))} <= page.ids
    for panel in drawn:
        assert panel.title in page.text


def test_the_head_shows_the_summary(page: Page) -> None:
    for shown in ("evaluation reward", "0.930", "trained groups", "240", "producer 1 · engine 1 · trainer 1"):
        assert shown in page.text


def test_the_knobs_are_shown(page: Page) -> None:
    assert "run_ahead 1" in page.text
    assert "max_staleness 2" in page.text


def test_the_file_is_written_into_the_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    assert write_report(folder) == folder / "report.html"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_a_run_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(config(tmp_path).dump())
    page = Page(write_report(tmp_path).read_text())
    assert "it has no summary yet" in page.text
    assert "every trajectory was written by one weight version" in page.text


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        write_report(tmp_path)


def test_text_from_a_run_cannot_end_the_script(run: RunRecords) -> None:
    ended = [{**sample_record(1, 0, 0, 1), "stop_reason": "</script><img src=x>"}]
    page = Page(render(RunRecords(run.config, {}, (), ended)))
    assert page.fetched == []


def test_a_lost_turn_raises_an_alarm(run: RunRecords) -> None:
    assert not any(tile.alarm for tile in tiles(run.summary))
    alarmed = [tile.name for tile in tiles({**run.summary, "lost_turns": 2, "trained_twice": 1}) if tile.alarm]
    assert alarmed == ["trained twice", "lost turns"]


def test_trajectories_of_most_versions_come_first(run: RunRecords) -> None:
    shown = trajectories(run)
    assert shown
    assert [row.versions for row in shown] == sorted((row.versions for row in shown), reverse=True)
    for row in shown:
        names = {version for _, _, versions in row.turns for version, _ in versions}
        assert len(names) == row.versions > 1


def test_a_version_has_one_colour_everywhere(run: RunRecords) -> None:
    colours: dict[str, str] = {}
    for row in trajectories(run):
        for _, _, versions in row.turns:
            for version, colour in versions:
                assert colours.setdefault(version, colour) == colour


def test_a_restarted_sample_shows_its_last_course(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(config(tmp_path).dump())
    with JsonLines(tmp_path / "turns" / "a.jsonl") as log:
        log.extend(turn_record(0, 0, turn, ["1"], number=0) for turn in range(4))
    with JsonLines(tmp_path / "turns" / "b.jsonl") as log:
        log.extend(turn_record(0, 0, turn, ["2"], number=9) for turn in range(2))
    run = RunRecords.load(tmp_path)
    assert run.trajectories == {"0-0": [LoggedTurn(0, 2, ("2",)), LoggedTurn(1, 2, ("2",))]}


def test_panels_hold_a_value_for_every_step(run: RunRecords) -> None:
    drawn = {panel.title: panel for panel in panels(run)}
    for title in ("Reward", "Group lag", "Turns per sample", "Seconds per step"):
        for trace in drawn[title].data:
            assert len(trace["x"]) == len(trace["y"]) == STEPS


def test_shares_add_up(run: RunRecords) -> None:
    drawn = {panel.title: panel for panel in panels(run)}
    for column in zip(*drawn["Weight versions per trajectory"].data[0]["z"], strict=True):
        assert sum(column) == pytest.approx(1)
    for column in zip(*(trace["y"] for trace in drawn["Why episodes end"].data), strict=True):
        assert sum(column) == pytest.approx(1)


def test_a_reason_has_the_same_colour_in_every_report(run: RunRecords) -> None:
    def colour(samples: list[dict[str, object]]) -> object:
        (panel,) = [p for p in panels(RunRecords(run.config, {}, (), samples)) if p.title == "Why episodes end"]
        return {trace["name"]: trace["fillcolor"] for trace in panel.data}["max_turns"]

    rare = [sample_record(1, 0, 0, 1, "max_turns"), *(sample_record(n, 0, n, 1) for n in range(2, 6))]
    assert colour(rare) == colour([sample_record(1, 0, 0, 1, "max_turns")])


def test_one_step_is_a_point(run: RunRecords) -> None:
    (panel, *_) = panels(RunRecords(run.config, {}, run.steps[:1], ()))
    assert {trace["mode"] for trace in panel.data} == {"markers"}


def test_a_trainers_restart_is_marked(run: RunRecords) -> None:
    (panel,) = [panel for panel in panels(run) if panel.title == "Reward"]
    assert [shape["x0"] for shape in panel.layout["shapes"]] == [41]


def test_changed_settings_are_listed_and_marked(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with JsonLines(folder / "changes.jsonl") as changes:
        changes.append({"number": 1, "time": 1.75e9, "setting": "scheduling.max_lag", "old": 2, "new": None,
                        "by": "set", "step": 7})  # fmt: skip
    run = RunRecords.load(folder)
    assert "2025-06-1515:06:40UTC7scheduling.max_lag2nolimitset" in "".join(Page(render(run)).text.split())
    panel = panels(run)[0]
    assert [shape["x0"] for shape in panel.layout["shapes"]] == [41, 7.5]
    assert [note["text"] for note in panel.layout["annotations"]] == ["trainer restarted", "max_lag"]


def test_the_pause_of_a_restart_is_no_throughput(run: RunRecords) -> None:
    (panel,) = [panel for panel in panels(run) if panel.title == "Tokens per second"]
    assert 41 not in panel.data[0]["x"]
    assert panel.data[0]["y"][0] == pytest.approx(130 / 2.0)


def test_a_step_without_a_comparable_sample_leaves_a_gap(run: RunRecords) -> None:
    step = {**step_record(1, np.random.default_rng(0)), "log_prob_difference": None}
    (panel,) = [p for p in panels(RunRecords(run.config, {}, [step], ())) if p.title.startswith("Engine and trainer")]
    assert panel.data[0]["y"] == [None]
