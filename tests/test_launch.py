"""Whole runs on real parts: SGLang, Valkey, Ray, FSDP. Each starts from the command line, as a user would."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from stream_rl.buffer import RunSnapshot, TrajectoryBuffer
from stream_rl.metrics.turn_log import read

EXAMPLE = Path(__file__).parents[1] / "examples" / "guess_number.yaml"
COMMAND = Path(sys.executable).parent / "stream-rl"
DEADLINE = 240.0
MARK = "STREAM_RL_TESTED_RUN"
"""In the environment of every process of a run, with the run's folder."""
SETTINGS = (
    "rollout.groups_per_step=8", "rollout.group_size=4", "producer.concurrency=32", "producer.lease_seconds=3",
    "trainer.mini_batches=2", "trainer.checkpoint_every=4", "evaluation.episodes=8",
)  # fmt: skip


class Run:
    """One run of the command line in a folder of its own."""

    def __init__(self, folder: Path, model: Path, steps: int, *settings: str) -> None:
        self.folder = folder
        self.steps = steps
        self._arguments = [
            str(EXAMPLE), f"run={folder}", f"model.path={model}", f"trainer.steps={steps}", *SETTINGS, *settings
        ]  # fmt: skip
        self.output = folder.with_suffix(".out")

    @contextmanager
    def started(self, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
        """The running command, ended by force if the test leaves it running."""
        with self.output.open("ab") as output:
            command = [str(COMMAND), "train", *self._arguments, *flags]
            marked = {**os.environ, MARK: str(self.folder)}
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, env=marked)
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(30)

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """The command's exit code, under a deadline; its output is the failure message."""
        try:
            return process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {DEADLINE:g} s:\n{self.output.read_text()}")

    def assert_nothing_is_left(self) -> None:
        """No process of the run goes on, whoever started it; the last ones have half a minute to end."""
        mark, until = f"{MARK}={self.folder}".encode(), time.monotonic() + 30.0
        while left := [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mark in _content(path)]:
            assert time.monotonic() < until, left
            time.sleep(0.1)

    def until(self, process: subprocess.Popen[bytes], reached: Callable[[RunSnapshot], bool]) -> RunSnapshot:
        """Watches the run's buffer, as `stream-rl status` does, until it is as the test wants it."""
        return asyncio.run(self._until(process, reached))

    async def _until(self, process: subprocess.Popen[bytes], reached: Callable[[RunSnapshot], bool]) -> RunSnapshot:
        async with asyncio.timeout(DEADLINE):
            while True:
                assert process.poll() is None, self.output.read_text()
                if (url := self._buffer_url()) is not None:
                    async with await TrajectoryBuffer.connect(url, self.folder.name, timeout=10.0) as buffer:
                        while not reached(snapshot := await buffer.snapshot()):
                            assert process.poll() is None, self.output.read_text()
                            await asyncio.sleep(0.05)
                        return snapshot
                await asyncio.sleep(0.1)

    def _buffer_url(self) -> str | None:
        """Of the server that runs: an earlier session's has ended with it."""
        announcement = self.folder / "run.json"
        url = orjson.loads(announcement.read_bytes())["buffer_url"] if announcement.exists() else None
        return url if url is not None and Path(url.removeprefix("unix://")).exists() else None

    @property
    def summary(self) -> dict[str, Any]:
        return orjson.loads((self.folder / "summary.json").read_bytes())

    def assert_every_group_trained_once(self) -> None:
        """The figures that hold however often processes died."""
        summary = self.summary
        assert summary["steps"] == self.steps
        assert summary["trained_groups"] == self.steps * 8
        assert summary["trained_twice"] == 0
        assert summary["lost_turns"] == 0


def _content(path: Path) -> bytes:
    """Of a file in /proc, or nothing where its process has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _pid(snapshot: RunSnapshot, kind: str) -> int:
    if kind == "engine":
        return snapshot.engines[0].pid
    return next(process.pid for process in snapshot.processes if process.kind == kind)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.timeout(600)
def test_a_run_survives_the_death_of_each_of_its_processes(run_folder: Path, tiny_model: Path) -> None:
    run = Run(run_folder, tiny_model, 14)
    with run.started() as process:
        for step, kind in ((2, "producer"), (4, "engine"), (6, "trainer"), (8, "redis")):
            snapshot = run.until(process, lambda now, step=step: now.ledger_steps >= step and bool(now.engines))
            os.kill(_pid(snapshot, kind), signal.SIGKILL)
            run.until(process, lambda now, kind=kind: now.recoveries[kind] == 1)
        assert run.wait(process) == 0, run.output.read_text()
    run.assert_every_group_trained_once()
    assert run.summary["recoveries"] == {"producer": 1, "engine": 1, "trainer": 1, "redis": 1}
    assert run.summary["eval_reward"] is not None
    assert (run_folder / "report.html").stat().st_size > 1_000_000


@pytest.mark.timeout(900)
def test_a_run_interrupted_while_it_starts_while_it_trains_and_at_once_goes_on_with_two_ranks(
    run_folder: Path, tiny_model: Path
) -> None:
    run = Run(run_folder, tiny_model, 7, "trainer.world_size=2")
    for flags, steps, interrupts in (((), 0, 1), (("--resume",), 2, 1), (("--resume",), 4, 2)):
        with run.started(*flags) as process:
            run.until(process, lambda now, steps=steps: now.ledger_steps >= steps)
            for number in range(interrupts):
                drains = run.output.read_text().count("draining: ")
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                while number + 1 < interrupts and run.output.read_text().count("draining: ") == drains:
                    assert process.poll() is None, run.output.read_text()
                    time.sleep(0.05)
            assert run.wait(process) == 130, run.output.read_text()
        run.assert_nothing_is_left()
    assert "Traceback" not in run.output.read_text()
    assert 2 <= run.summary["steps"] < 7
    with run.started("--resume") as process:
        assert run.wait(process) == 0, run.output.read_text()
    run.assert_nothing_is_left()
    run.assert_every_group_trained_once()
    steps = {line["step"]: line for line in read(run_folder / "steps.jsonl")}
    assert sorted(steps) == list(range(1, 8))


BLOCKING = """
import time
from pathlib import Path

from stream_rl.envs.guess_number import GuessNumber, prompt

ONCE = Path(__file__).with_suffix(".blocked")


def build_env(sample=None, args=None, **_):
    return Blocking(int(sample.label))


class Blocking(GuessNumber):
    async def step(self, response_text):
        block()
        return await super().step(response_text)

    async def cut(self, response_text):
        block()
        return await super().cut(response_text)


def block():
    if not ONCE.exists():
        ONCE.touch()
        time.sleep(1e6)  # not asyncio's
"""


@pytest.mark.timeout(600)
def test_a_producer_whose_loop_is_blocked_is_killed_and_the_run_goes_on(
    run_folder: Path, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "blocking.py").write_text(BLOCKING)
    settings = (f"environment.path={tmp_path / 'blocking.py'}", "producer.lease_seconds=1", "evaluation.episodes=0")
    run = Run(run_folder, tiny_model, 1, *settings)
    with run.started() as process:
        assert run.wait(process) == 0, run.output.read_text()
    run.assert_every_group_trained_once()
    assert run.summary["recoveries"]["producer"] == 1
    assert "producer-0 died, bringing it back: no heartbeat for" in run.output.read_text()


def test_a_run_whose_engine_cannot_start_ends_with_the_reason(run_folder: Path, tiny_model: Path) -> None:
    settings = ('engine.extra_args=["--no-such-flag"]', "supervision.max_deaths_without_progress=1")
    run = Run(run_folder, tiny_model, 2, *settings)
    with run.started() as process:
        assert run.wait(process) == 1
    assert "RepeatedDeaths" in run.output.read_text()
    assert "Traceback" not in run.output.read_text()
