"""inspect, export, dead-letters, purge: on the buffer of a run that has stopped, of one that lives, and of others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from command_line import StreamRL
from played_run import RULES, START, begin, fill, turn

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.metrics.announcement import RunAnnouncement
from stream_rl.run_lock import run_lock
from stream_rl.sample import Sample

ROW_ORDER = ["0-0", "0-1", "1-0", "1-1", "2-0", "3-0"]


@pytest.fixture(params=["stopped", "live"])
def run(request: pytest.FixtureRequest) -> Path:
    """Both in turn."""
    folder: Path = request.getfixturevalue(request.param)
    return folder


def test_inspect_lists_groups_by_state(stream_rl: StreamRL, run: Path) -> None:
    answer = stream_rl("inspect", run)
    rows = [line.split() for line in answer.out.splitlines() if line.strip()[:1].isdigit()][:4]
    assert [row[:2] for row in rows] == [["0", "trained"], ["1", "trained"], ["2", "dead-lettered"], ["3", "live"]]
    assert "1 leased, 1 queued" in answer.out
    assert answer.out.splitlines()[-1] == "2 trained, 1 dead-lettered, 1 live"


def test_inspect_shows_a_trajectory_turn_by_turn(stream_rl: StreamRL, stopped: Path) -> None:
    text = stream_rl("inspect", stopped, "1-1").out
    for expected in (
        "sample 1-1  completed: env_done", "reward 0.5", "1 environment retries", "temperature 0.7, seed 11", "label 4",
        "turn 1  stop", "0 [0:2] lag 0, 1.1 [2:3] lag -1", "generate 0.250 s env_step 0.125 s",
        "prompt, 3 tokens", "generated, 3 tokens", "observed, 2 tokens", "loss mask 0", "env_retries 1",
    ):  # fmt: skip
        assert expected in text, expected
    assert "sample 1-0" not in text
    ids = stream_rl("inspect", stopped, "3", "--ids").out
    assert "generated, 3 tokens  6 7 8" in ids
    assert "cut here, goes on in the next record" in ids
    assert "sample 3-1  queued" in ids


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("9", "group 9 is not held"),
        ("1-7", "group 1 has no sample 1-7 now: it has 1-0, 1-1"),
        ("1-1-2", "group 1 has no sample 1-1-2 now"),
        ("x", "'x' is no group, like 12, and no sample, like 12-3"),
    ],
)
def test_inspect_of_what_is_not_there(stream_rl: StreamRL, stopped: Path, what: str, message: str) -> None:
    answer = stream_rl("inspect", stopped, what)
    assert (answer.code, message in answer.err) == (2, True)


def test_a_text_cannot_steer_the_terminal(stream_rl: StreamRL, stopped: Path) -> None:
    for command in ("list", "show"):
        out = stream_rl("dead-letters", command, stopped, *(["2"] if command == "show" else [])).out
        assert "\x1b" not in out
        assert "the world \\x1b[31mis gone" in out


def expected_sample() -> Sample:
    sample = Sample(0, 0, START.prompt, START.prompt_tokens)
    sample.append(turn(0))
    sample.append(turn(1, reward=0.5))
    return sample


def test_export_writes_every_sample_in_both_formats(stream_rl: StreamRL, run: Path) -> None:
    assert stream_rl("export", run, "--format", "jsonl").out.startswith("wrote 6 rows, 6 of them with tokens")
    lines = [orjson.loads(line) for line in (run / "export.jsonl").read_bytes().splitlines()]
    assert [row["sample"] for row in lines] == ROW_ORDER
    sample = expected_sample()
    first, last = lines[0], lines[-1]
    assert first["tokens"] == sample.tokens.tolist()
    assert first["loss_mask"] == sample.loss_mask.tolist()
    assert np.array_equal(np.array(first["rollout_log_probs"], np.float32), sample.rollout_log_probs)
    assert first["weight_versions"][1] == {"start": 2, "end": 3, "version": "1.1"}
    assert (first["reward"], first["step"], first["turn_rewards"], first["metadata"]) == (
        0.0,
        1,
        [0, 0.5],
        {"level": 1},
    )
    assert (last["status"], last["reward"], last["turns"], len(last["tokens"])) == ("pending", None, 1, 3 + 5 + 3)

    assert stream_rl("export", run, "--format", "parquet", "--output", run / "x" / "a.parquet").code == 0
    rows = pq.read_table(run / "x" / "a.parquet").to_pylist()
    for line, row in zip(lines, rows, strict=True):
        texts = {name: orjson.loads(row.pop(name)) for name in ("prompt", "label", "metadata")}
        assert row | texts == {**line, "rollout_log_probs": row["rollout_log_probs"]}
        assert np.array_equal(np.array(line["rollout_log_probs"], np.float32), np.float32(row["rollout_log_probs"]))


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_export_of_retired_samples_has_their_figures(stream_rl: StreamRL, stopped: Path, form: str) -> None:
    ended = {"number": 1, "sample": "9-0", "group": 9, "index": 0, "attempt": 0, "kind": "finished", "reward": 1.0,
             "status": "completed", "stop_reason": "env_done", "turns": 2, "response_length": 7, "generated": 5,
             "v0": 3}  # fmt: skip
    (stopped / "samples.jsonl").write_bytes(
        b"\n".join(map(orjson.dumps, [ended, ended, {**ended, "number": 2, "sample": "0-0"}]))
    )
    (stopped / "samples.jsonl").open("a").write("\n")
    assert "wrote 7 rows, 6 of" in stream_rl("export", stopped, "--format", form, "--retired").out
    path = stopped / f"export.{form}"
    rows = pq.read_table(path).to_pylist() if form == "parquet" else map(orjson.loads, path.read_bytes().splitlines())
    (row,) = [row for row in rows if not row["held"]]
    assert (row["sample"], row["reward"], row.get("tokens")) == ("9-0", 1.0, None)


def test_an_export_that_cannot_be_written_leaves_nothing(stream_rl: StreamRL, stopped: Path) -> None:
    answer = stream_rl("export", stopped, "--format", "jsonl", "--output", "/dev/null/x")
    assert (answer.code, "--output=/dev/null/x cannot be written" in answer.err) == (2, True)


def test_dead_letters_are_listed_shown_and_requeued_once(stream_rl: StreamRL, run: Path) -> None:
    assert "env_failure" in stream_rl("dead-letters", "list", run).out
    shown = stream_rl("dead-letters", "show", run, "2").out
    assert "finished samples, kept: 2-0" in shown
    assert "requeued: no" in shown
    assert stream_rl("dead-letters", "requeue", run, "2").out == "group 2: requeued\n"
    again = stream_rl("dead-letters", "requeue", run, "2").out
    assert again == "group 2: was requeued before, waits for the next admission\n"
    assert "waits for the next admission" in stream_rl("dead-letters", "list", run).out
    assert stream_rl("dead-letters", "requeue", run, "--all").out == "no dead letter is left to requeue\n"
    assert "group 1 is no dead letter" in stream_rl("dead-letters", "requeue", run, "1").err
    assert "group 1 is no dead letter" in stream_rl("dead-letters", "show", run, "1").err
    assert "name the groups to requeue, or pass --all" in stream_rl("dead-letters", "requeue", run).err


def test_purge_removes_a_stopped_runs_buffer(
    stream_rl: StreamRL, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.confirm", lambda *_, **__: pytest.fail("asked"))
    assert "deleted" in stream_rl("purge", stopped, "--yes").out
    assert not (stopped / "buffer").exists()
    assert "holds nothing" in stream_rl("purge", stopped, "--yes").out
    assert "the run was never started, or was purged" in stream_rl("inspect", stopped).err


def test_purge_asks_and_refuses_a_live_run(stream_rl: StreamRL, live: Path) -> None:
    assert "is running now: stop it first" in stream_rl("purge", live, "--yes").err
    assert stream_rl("inspect", live).code == 0


@pytest.mark.parametrize("answer", ["n", "y"])
def test_purge_of_a_servers_keys_asks_and_spares_other_runs(
    stream_rl: StreamRL, settings: Path, plain_valkey: Callable[..., str], monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    url = plain_valkey()
    config = begin(settings, f"buffer.url={url}", f"run={settings.parent}/a*[b]")
    for name in (config.name, "ab", "axb"):
        asyncio.run(fill(url, name))
    monkeypatch.setattr("typer.confirm", lambda *_, **__: answer == "y" or (_ for _ in ()).throw(SystemExit(1)))
    assert stream_rl("purge", config.folder).code == (0 if answer == "y" else 1)
    assert stream_rl("inspect", config.folder).code == (2 if answer == "y" else 0)

    async def neighbours() -> None:
        for name in ("ab", "axb"):
            async with await TrajectoryBuffer.connect(url, name) as buffer:
                assert list(await buffer.held_groups()) == [0, 1, 2, 3]

    asyncio.run(neighbours())


def test_purge_refuses_while_a_producer_of_another_machine_lives(
    stream_rl: StreamRL, settings: Path, plain_valkey: Callable[..., str]
) -> None:
    url = plain_valkey()
    config = begin(settings, f"buffer.url={url}")

    async def alive() -> None:
        async with await TrajectoryBuffer.connect(url, config.name) as buffer:
            await buffer.open_run(RULES)
            await buffer.heartbeat("elsewhere", 600.0)

    asyncio.run(alive())
    assert "is running: 1 producers are alive" in stream_rl("purge", config.folder, "--yes").err


def test_a_run_that_starts_right_now_is_not_read(stream_rl: StreamRL, stopped: Path) -> None:
    with run_lock(stopped):
        assert "is running now" in stream_rl("inspect", stopped).err
        RunAnnouncement(os.getpid(), 0.0, 0.0, f"unix://{stopped}/absent", "").write(stopped)
        answer = stream_rl("inspect", stopped)
    assert (answer.code, "is starting, or brings its buffer back: try again" in answer.err) == (1, True)
