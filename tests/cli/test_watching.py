"""`stream-rl metrics-sd` and `stream-rl turns`: where a live run's metrics are, and what its turn log says."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from command_line import StreamRL
from played_run import RULES
from rich.console import Console

from stream_rl.buffer import EmbeddedServer, ProcessRecord, TrajectoryBuffer
from stream_rl.cli.metrics_sd import Look
from stream_rl.config import Config
from stream_rl.metrics.announcement import RunAnnouncement
from stream_rl.metrics.turn_log import JsonLines
from stream_rl.run_lock import run_lock
from stream_rl.sample import WeightVersion


def made_run(folder: Path) -> Config:
    config = Config.parse({"run": str(folder), "model": {"path": "m"}, "environment": {"path": "guess_number"}})
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config.dump())
    return config


async def registered(config: Config, url: str) -> None:
    async with await TrajectoryBuffer.of(config, url) as buffer:
        await buffer.open_run(RULES)
        producer = ProcessRecord("producer-0", "producer", "here", 1, "http://10.0.0.3:41023/metrics")
        for record in (producer, ProcessRecord("redis", "redis", "here", 1, "")):
            await buffer.register_process(record)
        await buffer.engine_joined("engine-0", "http://10.0.0.4:30000", 1)
        await buffer.engine_serving("engine-0", WeightVersion(0))


@pytest.fixture
def live_run(tmp_path: Path) -> Iterator[Path]:
    """A folder of runs: one that lives, one that ended."""
    config = made_run(tmp_path / "runs" / "alive")
    made_run(tmp_path / "runs" / "ended")
    RunAnnouncement(1, time.time(), 0.0, "unix:///gone", "").write(tmp_path / "runs" / "ended")
    with EmbeddedServer(tmp_path / "valkey", fsync="no") as server, run_lock(config.folder):
        RunAnnouncement(os.getpid(), time.time(), 0.0, server.url, "").write(config.folder)
        asyncio.run(registered(config, server.url))
        yield tmp_path / "runs"


@pytest.mark.parametrize("below", ["", "alive"])
def test_every_process_of_a_live_run_is_told_with_its_name(stream_rl: StreamRL, live_run: Path, below: str) -> None:
    answer = stream_rl("metrics-sd", live_run / below, "--once")
    assert answer.code == 0
    assert orjson.loads(answer.out) == [
        {"targets": ["10.0.0.3:41023"], "labels": {"run": "alive", "kind": "producer", "instance": "producer-0"}},
        {"targets": ["10.0.0.4:30000"], "labels": {"run": "alive", "kind": "engine", "instance": "engine-0"}},
    ]


def test_a_run_that_has_ended_has_no_targets(stream_rl: StreamRL, live_run: Path) -> None:
    assert orjson.loads(stream_rl("metrics-sd", live_run / "ended", "--once").out) == []


@pytest.mark.parametrize("damaged", ["run.json", "config.yaml"])
def test_a_run_that_cannot_be_read_is_said_and_hides_no_other(
    stream_rl: StreamRL, live_run: Path, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    with run_lock(live_run / "ended"):
        (live_run / "ended" / damaged).write_text("{")
        told = orjson.loads(stream_rl("metrics-sd", live_run, "--once").out)
    assert [target["labels"]["instance"] for target in told] == ["producer-0", "engine-0"]
    assert f"{live_run / 'ended' / damaged}" in caplog.text


def test_what_cannot_be_read_is_said_once(live_run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (live_run / "ended" / "run.json").write_text("{")
    look = Look(live_run)
    for _ in range(2):
        look()
    assert caplog.text.count("is damaged") == 1


def test_a_port_that_cannot_be_is_refused(stream_rl: StreamRL, tmp_path: Path) -> None:
    answer = stream_rl("metrics-sd", tmp_path, "--port", "70000")
    assert (answer.code, "--port" in answer.err, "Traceback" in answer.err) == (2, True, False)


def test_discovery_of_no_folder_or_on_a_taken_port_is_refused(
    stream_rl: StreamRL, tmp_path: Path, taken_port: int
) -> None:
    answer = stream_rl("metrics-sd", tmp_path / "absent")
    assert (answer.code, "is no folder" in answer.err) == (2, True)
    answer = stream_rl("metrics-sd", tmp_path, "--port", str(taken_port))
    assert (answer.code, f"--port {taken_port}" in answer.err) == (2, True)


def test_a_live_run_whose_folder_cannot_be_written_is_named(stream_rl: StreamRL, live: Path) -> None:
    (live / "summary.json.new").mkdir()
    answer = stream_rl("report", live)
    assert (answer.code, "Traceback" in answer.err) == (2, False)
    assert f"cannot write the report into {live}: Is a directory" in answer.err


@pytest.fixture
def logged_run(tmp_path: Path) -> Path:
    made_run(tmp_path / "run")
    with JsonLines(tmp_path / "run" / "turns" / "producer-0.jsonl") as log:
        for number in range(10):
            log.append({
                "time": 1.0 + number, "sample": f"{number}-0", "group": number, "index": 0, "attempt": 0,
                "turn": number % 2, "complete": True, "position": 1, "prompt": 5, "generated": number,
                "observation": 0, "versions": ["3"], "generate_seconds": 0.1 * number, "queue_seconds": 0.0,
                "env_seconds": 0.0, "encode_seconds": 0.0, "commit_seconds": 0.0, "env_retries": 0, "reward": 0.0,
                "finish_reason": "stop", "environment": "guess_number",
            })  # fmt: skip
    return tmp_path / "run"


def test_turns_are_counted_by_their_place(stream_rl: StreamRL, logged_run: Path) -> None:
    answer = stream_rl("turns", logged_run, "--by", "turn", "--percentiles", "50,100", "--json")
    assert answer.code == 0
    rows = [orjson.loads(line) for line in answer.out.splitlines()]
    generated = {row["turn"]: row for row in rows if row["measure"] == "generated"}
    assert generated == {
        0: {"turn": 0, "measure": "generated", "count": 5, "mean": 4.0, "p50": 4.0, "p100": 8.0, "max": 8.0},
        1: {"turn": 1, "measure": "generated", "count": 5, "mean": 5.0, "p50": 5.0, "p100": 9.0, "max": 9.0},
    }


def test_the_longest_turns_are_shown_in_a_table(stream_rl: StreamRL, logged_run: Path) -> None:
    answer = stream_rl("turns", logged_run, "--longest", "generate_seconds", "--limit", "1", "--where", "turn = 0")
    assert answer.code == 0
    header, row = answer.out.strip().splitlines()
    assert header.split()[:3] == ["sample", "turn", "producer"]
    assert row.split()[:3] == ["8-0", "0", "producer-0"]


def test_a_narrow_terminal_cuts_no_name_and_no_number(
    stream_rl: StreamRL, logged_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = stream_rl("turns", logged_run, "--by", "environment").out
    monkeypatch.setattr("stream_rl.cli.turns.Console", lambda **options: Console(**{"width": 40, **options}))
    assert stream_rl("turns", logged_run, "--by", "environment").out == wide
    assert "…" not in wide


def test_no_turn_is_said(stream_rl: StreamRL, logged_run: Path) -> None:
    answer = stream_rl("turns", logged_run, "--where", "generated > 1000")
    assert (answer.code, answer.out) == (0, "no turn is left by --where\n")
    assert stream_rl("turns", logged_run, "--where", "generated > 1000", "--json").out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--by", "sample"), "--by sample: it must be one of environment, turn"),
        (("--longest", "reward"), "--longest reward: it must be one of generate_seconds"),
        (("--percentiles", "fifty"), "--percentiles fifty: give numbers from 0 to 100"),
        (("--where", "nonsense"), "--where cannot be asked: "),
        (("--where", "nonsense = 1"), "environment, producer, version\n"),
        (("--where", " "), "--where '' is empty: leave it away, or give a condition, as \"turn = 0\""),
    ],
)
def test_what_cannot_be_asked_is_named(
    stream_rl: StreamRL, logged_run: Path, options: tuple[str, ...], message: str
) -> None:
    answer = stream_rl("turns", logged_run, *options)
    assert answer.code == 2
    assert message in answer.err
