"""The run folder as the supervisor writes it: ended samples once and in order, seconds over all starts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from prometheus_client import REGISTRY

from stream_rl.buffer import EmbeddedServer, Outcome, RunRules, RunSnapshot, SampleStart, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.metrics.announcement import RunAnnouncement
from stream_rl.metrics.turn_log import JsonLines, read
from stream_rl.recording import RunRecorder
from stream_rl.sample import Status, StopReason, Turn, VersionSpan, WeightVersion

START = SampleStart("guess", np.array([5], np.int32))
TURN = Turn(
    0, np.ones(2, np.int32), np.zeros(2, np.float32), np.zeros(0, np.int32), (VersionSpan(0, 2, WeightVersion(0)),)
)
WON = Outcome(Status.COMPLETED, StopReason.ENV_DONE, 1.0)


class Seen:
    """A progress that keeps what it was shown."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, Any]] = []

    def update(self, snapshot: RunSnapshot, steps: Sequence[Mapping[str, Any]]) -> None:
        self.steps += steps

    def say(self, line: str) -> None:
        raise AssertionError(line)


class Listening(Seen):
    """One that is told things."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("valkey") / "data", fsync="no") as running:
        yield running


@pytest.fixture
def config(tmp_path: Path) -> Config:
    tree = {
        "run": str(tmp_path / "run"), "model": {"path": "models/tiny-text"}, "environment": {"path": "guess_number"},
        "rollout": {"groups_per_step": 1, "group_size": 2},
    }  # fmt: skip
    config = Config.parse(tree)
    config.folder.mkdir()
    (config.folder / "config.yaml").write_text(config.dump())
    return config


@pytest.fixture
async def buffer(server: EmbeddedServer, config: Config) -> AsyncIterator[TrajectoryBuffer]:
    async with await TrajectoryBuffer.connect(server.url, config.folder.parent.name, timeout=5.0) as connected:
        await connected.open_run(RunRules.of(config))
        await connected.engine_joined("engine-0", "http://127.0.0.1:1", 1)
        await connected.engine_serving("engine-0", WeightVersion(0))
        await connected.heartbeat("p", 60.0)
        yield connected


async def win(buffer: TrajectoryBuffer, count: int) -> list[str]:
    leased = await buffer.lease("p", count)
    for sample in leased:
        await buffer.commit(sample.lease, 0, [START, TURN], WON)
    return [str(sample.lease.sample_id) for sample in leased]


async def test_each_ended_sample_is_written_once(config: Config, buffer: TrajectoryBuffer) -> None:
    recorder = RunRecorder(config, buffer, Seen())
    ended = await win(buffer, 2)
    await recorder.record_outcomes()
    ended += await win(buffer, 1)
    await recorder.record_outcomes()
    await recorder.record_outcomes()

    lines = list(read(config.folder / "samples.jsonl"))
    assert [line["sample"] for line in lines] == ended
    assert [line["number"] for line in lines] == [1, 2, 3]
    assert await buffer.outcomes(10) == []


async def test_the_summary_has_what_the_buffer_knows(config: Config, buffer: TrajectoryBuffer) -> None:
    seen = Seen()
    recorder = RunRecorder(config, buffer, seen)
    recorder.announce("unix:///redis", "http://here/metrics", resume=False)
    await win(buffer, 2)
    await buffer.count_recovery("engine")

    summary = await recorder.summarise(0.75)

    assert (summary["committed_turns"], summary["recoveries"]["engine"], summary["eval_reward"]) == (2, 1, 0.75)
    assert orjson.loads((config.folder / "summary.json").read_bytes()) == summary
    assert (config.folder / "report.html").stat().st_size > 0


@pytest.mark.parametrize(("resume", "before"), [(True, 500.0), (False, 0.0)])
async def test_only_a_resumed_run_goes_on_counting_its_seconds(
    config: Config, buffer: TrajectoryBuffer, resume: bool, before: float
) -> None:
    (config.folder / "summary.json").write_bytes(orjson.dumps({"wall_seconds": 500.0}))
    recorder = RunRecorder(config, buffer, Seen())

    recorder.announce("unix:///redis", "http://here/metrics", resume=resume)

    announced = RunAnnouncement.read(config.folder)
    assert announced is not None
    assert announced.seconds_before == before
    assert before <= (await recorder.summarise(None))["wall_seconds"] < before + 60.0


async def test_a_start_that_was_killed_counts_up_to_its_last_line(config: Config, buffer: TrajectoryBuffer) -> None:
    RunAnnouncement(1, 1000.0, 500.0, "unix:///redis", "").write(config.folder)
    recorder = RunRecorder(config, buffer, Seen())
    (config.folder / "steps.jsonl").touch()
    for name, time in (("steps", 1060.0), ("samples", 1030.0)):
        os.utime(config.folder / f"{name}.jsonl", (time, time))

    recorder.announce("unix:///redis", "http://here/metrics", resume=True)

    announced = RunAnnouncement.read(config.folder)
    assert announced is not None
    assert announced.seconds_before == 560.0


async def test_changes_of_settings_are_written_once_and_said(config: Config, buffer: TrajectoryBuffer) -> None:
    seen = Listening()
    await buffer.set_live({"max_lag": 20})
    recorder = RunRecorder(config, buffer, seen)
    for value in (5, 6):
        await buffer.set_live({"concurrency": value})
        await recorder.look()
    # The supervisor that takes over knows what stands in the file.
    await RunRecorder(config, buffer, Seen()).look()

    lines = list(read(config.folder / "changes.jsonl"))
    assert [(line["number"], line["setting"], line["old"], line["new"]) for line in lines] == [
        (1, "scheduling.max_lag", 12, 20), (2, "producer.concurrency", 256, 5), (3, "producer.concurrency", 5, 6),
    ]  # fmt: skip
    assert seen.lines[2] == "producer.concurrency was changed from 5 to 6 (set)"


STEP = {
    "wait_seconds": 0.5, "load_seconds": 0.0, "train_seconds": 1.0, "publish_seconds": 0.0, "checkpoint_seconds": 0.0,
    "pack_seconds": 0.1, "forward_backward_seconds": 0.7, "optimizer_seconds": 0.2, "wait_reasons": {"lag_rule": 0.5},
    "oldest_group_length": 3, "masked_by_length": {}, "sample_lags": [0.0, 1.0], "group_v0": [0], "by_lag": {},
    "multi_version_samples": 1, "response_length_max": 3, "reward_mean": 0.5, "loss": 0.0, "entropy": 1.0,
    "grad_norm": 0.1, "log_prob_difference": None, "correction_share": None, "group_lag_max": 0,
}  # fmt: skip


async def test_progress_sees_each_step_once(config: Config, buffer: TrajectoryBuffer) -> None:
    seen = Seen()
    recorder = RunRecorder(config, buffer, seen)
    steps_before = counted("trainer_steps_total")
    with JsonLines(config.folder / "steps.jsonl") as steps:
        for step in (1, 2):
            steps.append({**STEP, "step": step})
            await recorder.look()
    assert [step["step"] for step in seen.steps] == [1, 2]
    assert counted("trainer_steps_total") == steps_before + 2


async def test_a_supervisor_that_is_started_again_counts_what_the_one_before_wrote(
    config: Config, buffer: TrajectoryBuffer
) -> None:
    def ended() -> float:
        return counted("samples_ended_total", environment="guess_number", status="completed", reason="env_done")

    before = RunRecorder(config, buffer, Seen())
    await win(buffer, 2)
    await before.record_outcomes()
    shown = ended()
    again = RunRecorder(config, buffer, Seen())  # in a new process it begins at 0
    assert ended() == shown + 2
    await again.record_outcomes()
    assert ended() == shown + 2


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"stream_rl_{name}", labels) or 0.0
