"""What the commands print when all is well, and that `--help` answers at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import orjson
import pytest
from command_line import StreamRL
from rich.console import Console, RenderableType

from stream_rl.buffer import EmbeddedServer, ProcessRecord, RunRules, TrajectoryBuffer
from stream_rl.cli.status import view
from stream_rl.cli.tables import rewards_line, summary_table
from stream_rl.config import Config
from stream_rl.errors import RepeatedDeaths
from stream_rl.metrics.announcement import RunAnnouncement
from stream_rl.run_lock import run_lock
from stream_rl.sample import WeightVersion

DOCS = Path(__file__).parents[2] / "docs"
NO_PROCESS = 2**22 + 1


def text_of(shown: RenderableType) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


@pytest.fixture
def run(tmp_path: Path, settings: Path) -> Config:
    """A run folder of which only the settings are there."""
    config = Config.load(settings)
    config.folder.mkdir()
    (config.folder / "config.yaml").write_text(config.dump())
    return config


def announce(config: Config, url: str, pid: int) -> None:
    RunAnnouncement(pid, 0.0, 0.0, url, "http://here/metrics").write(config.folder)


@pytest.mark.parametrize(
    "command",
    ["train", "status", "report", "make-model", "inspect", "export", "purge", "settings", "metrics", "metrics-sd",
     "turns", "buffer check", "set", "simulate", "sweep", "dead-letters list", "dead-letters show",
     "dead-letters requeue"],
)  # fmt: skip
def test_help_teaches_by_example(stream_rl: StreamRL, command: str) -> None:
    answer = stream_rl(*command.split(), "--help")
    assert answer.code == 0
    assert f"stream-rl {command} " in answer.out


@pytest.mark.parametrize(
    ("command", "default"),
    [("status", "watch on a terminal"), ("export", "RUN/export.FORMAT"), ("sweep", "the settings' run folder")],
)
def test_help_says_what_holds_without_an_option(stream_rl: StreamRL, command: str, default: str) -> None:
    assert f"[default: ({default}" in stream_rl(command, "--help").out


def test_help_imports_nothing_slow() -> None:
    script = (
        "import sys; sys.argv = ['stream-rl', '--help']\n"
        "from stream_rl.cli import main\n"
        "try: main()\n"
        "finally: print('slow:', *sorted({'torch', 'ray', 'transformers', 'redis', 'sglang'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "slow:"


@pytest.mark.parametrize(("command", "page"), [("settings", "settings.md"), ("metrics", "metrics.md")])
def test_references_in_the_docs_are_what_the_program_prints(stream_rl: StreamRL, command: str, page: str) -> None:
    answer = stream_rl(command)
    assert answer.code == 0
    assert answer.out == (DOCS / page).read_text(), f"run `stream-rl {command} > docs/{page}`"


def test_every_setting_says_what_it_does(stream_rl: StreamRL) -> None:
    rows = [line for line in stream_rl("settings").out.splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert all(row.split(" | ")[-1].strip(" |") for row in rows)


def test_it_says_its_version(stream_rl: StreamRL) -> None:
    assert stream_rl("--version").out == f"{version('stream_rl')}\n"


def test_make_model_writes_a_model(stream_rl: StreamRL, tmp_path: Path) -> None:
    answer = stream_rl("make-model", "tiny-text", tmp_path / "tiny")
    assert answer.code == 0
    assert (tmp_path / "tiny" / "config.json").exists()


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("finished", "code"), [(True, 0), (False, 130)])
def test_train_ends_with_the_summary(
    stream_rl: StreamRL, settings: Path, monkeypatch: pytest.MonkeyPatch, finished: bool, code: int
) -> None:
    asked: list[bool] = []

    def launched(config: Config, *, resume: bool, progress: object) -> dict[str, object]:
        asked.append(resume)
        return {"steps": 7, "trained_groups": 224, "finished": finished}

    monkeypatch.setattr("stream_rl.launch.train", launched)
    answer = stream_rl("train", settings, "--resume")
    assert answer.code == code
    assert asked == [True]
    assert "trained_groups" in answer.out
    assert "report.html" in answer.out
    assert ("--resume goes on" in answer.out) == (not finished)


def test_report_prints_the_path(stream_rl: StreamRL, run: Config) -> None:
    answer = stream_rl("report", run.folder)
    assert (answer.code, answer.out) == (0, f"{run.folder / 'report.html'}\n")


def test_status_of_a_run_that_ended_shows_its_summary(stream_rl: StreamRL, run: Config) -> None:
    (run.folder / "summary.json").write_text('{"steps": 12, "recoveries": {"engine": 1}, "eval_reward": null}')
    answer = stream_rl("status", run.folder, "--once")
    assert answer.code == 0
    assert "not running" in answer.out
    assert "engine 1" in answer.out


def test_other_failures_with_a_name_exit_with_1(
    stream_rl: StreamRL, run: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise RepeatedDeaths("trainer died 3 times\nlast cause: memory")

    monkeypatch.setattr("stream_rl.cli.report.write_report", fail)
    answer = stream_rl("report", run.folder)
    assert answer.code == 1
    assert answer.err == "stream-rl: error: RepeatedDeaths: trainer died 3 times last cause: memory\n"


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    server = EmbeddedServer(tmp_path / "redis")
    server.start()
    yield server.url
    server.stop()


async def open_run(config: Config, url: str) -> None:
    """A run as the buffer knows it after one recovery, with an engine and a producer."""
    async with await TrajectoryBuffer.connect(url, config.name) as buffer:
        await buffer.open_run(RunRules.of(config))
        await buffer.engine_joined("engine-0", "http://127.0.0.1:30000", 77)
        await buffer.engine_serving("engine-0", WeightVersion(4, 1))
        await buffer.register_process(ProcessRecord("producer-0", "producer", "here", 78, "http://127.0.0.1:9/m"))
        await buffer.count_recovery("trainer")


@pytest.mark.parametrize(
    ("pid", "locked", "state"),
    [
        (os.getpid(), True, "running"),
        (os.getpid(), False, "its supervisor is gone"),  # another process has its number by now
        (NO_PROCESS, True, "its supervisor is gone"),  # a look at the stopped run
    ],
)
async def test_status_of_a_live_run(run: Config, redis_url: str, pid: int, state: str, *, locked: bool) -> None:
    announce(run, redis_url, pid)
    await open_run(run, redis_url)
    with run_lock(run.folder) if locked else contextlib.nullcontext():
        shown, supervised = await view(run.folder, run)
    text = text_of(shown)
    assert "recoveries" in text
    assert {kind: int(times) for kind, times in re.findall(r"\b(producer|engine|trainer|redis) +(\d+) ", text)} == {
        "producer": 0, "engine": 0, "trainer": 1, "redis": 0,
    }  # fmt: skip
    assert supervised == (state == "running")
    for expected in (state, "step 0 of 100", "4.1", "serving", "producer-0", "http://127.0.0.1:9/m", "max_staleness"):
        assert expected in text


async def test_status_before_the_run_is_opened(run: Config, redis_url: str) -> None:
    announce(run, redis_url, os.getpid())
    with run_lock(run.folder):
        shown, supervised = await view(run.folder, run)
    assert supervised
    assert "starting" in text_of(shown)


def test_report_of_a_live_run_asks_the_buffer(stream_rl: StreamRL, run: Config, redis_url: str) -> None:
    announce(run, redis_url, os.getpid())
    asyncio.run(open_run(run, redis_url))
    with run_lock(run.folder):
        assert stream_rl("report", run.folder).code == 0
    summary = orjson.loads((run.folder / "summary.json").read_bytes())
    assert summary["recoveries"]["trainer"] == 1
    assert summary["wall_seconds"] > 0


def test_report_of_an_ended_run_leaves_its_summary(stream_rl: StreamRL, run: Config, redis_url: str) -> None:
    announce(run, redis_url, NO_PROCESS)
    asyncio.run(open_run(run, redis_url))
    assert stream_rl("report", run.folder).code == 0
    assert not (run.folder / "summary.json").exists()


async def test_status_outlives_a_buffer_that_is_away(run: Config, tmp_path: Path) -> None:
    announce(run, f"unix://{tmp_path / 'absent.sock'}", os.getpid())
    with run_lock(run.folder):
        shown, supervised = await view(run.folder, run)
    assert supervised
    assert "its buffer does not answer" in text_of(shown)


def test_rewards_are_drawn_from_lowest_to_highest() -> None:
    assert str(rewards_line([{"reward_mean": value} for value in (0.0, 0.5, 1.0)])).startswith("reward ▁▅█  last 1.000")
    assert str(rewards_line([{"reward_mean": 0.5}])).startswith("reward ▁")
    assert str(rewards_line([])) == "no step yet"


def test_a_summarys_figures_are_legible() -> None:
    text = text_of(summary_table({"generated_tokens": 1234567, "eval_reward": None, "reward_best5": 0.98765}))
    for expected in ("1,234,567", "–", "0.988"):
        assert expected in text


def test_an_environment_may_be_a_module_of_the_current_folder(settings: Path, tmp_path: Path) -> None:
    (tmp_path / "my_world.py").write_text("from stream_rl.envs.guess_number import build_env, prompt\n")
    program = Path(sys.executable).parent / "stream-rl"
    command = [str(program), "train", str(settings), "environment.path=my_world", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
