"""Whatever a user gets wrong: one line that names the setting and the fix, exit code 2, nothing half-started."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from command_line import Answer, StreamRL

from stream_rl.run_lock import run_lock

Refusal = Callable[..., str]
"""Calls `train`, which must refuse: its message."""


def refused(answer: Answer) -> str:
    """The message, after checking its form."""
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert line.startswith("stream-rl: error: ")
    assert "Traceback" not in answer.err
    return line.removeprefix("stream-rl: error: ")


@pytest.fixture
def train_refused(stream_rl: StreamRL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """`train_refused(settings, ...)`: the message of a run that is refused before anything is made or started."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("the run was started")

    def call(*arguments: str | Path) -> str:
        folder = tmp_path / "run"
        before, running = made_in(folder), children()
        message = refused(stream_rl("train", *arguments))
        assert made_in(folder) == before
        deadline = time.monotonic() + 10.0
        while children() != running:
            assert time.monotonic() < deadline, "a process that was started goes on"
            time.sleep(0.01)
        return message

    monkeypatch.setattr("stream_rl.launch.train", started)
    return call


def made_in(folder: Path) -> dict[Path, bytes | None] | None:
    """What stands in a run folder: contents by path, None for folders; None where there is no such folder."""
    if not folder.exists():
        return None
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def children() -> set[str]:
    """The processes that this one has started and that run; those that have ended may wait to be asked for it."""
    started = {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}
    return {pid for pid in started if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"}


@pytest.fixture
def locked_redis(plain_valkey: Callable[..., str]) -> str:
    """The URL of a server with the password "right"."""
    return plain_valkey("--requirepass", "right")


def test_good_settings_are_ready(stream_rl: StreamRL, settings: Path) -> None:
    answer = stream_rl("train", settings, "--dry-run")
    assert answer.code == 0
    assert answer.out.startswith("ready: ")
    assert not (settings.parent / "run").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.stepz=3", "unknown setting 'trainer.stepz': did you mean 'steps'?"),
        ("trainer.steps=none", "setting trainer.steps='none': "),
        ("scheduling.max_lag=1", "scheduling: max_staleness=8 is more than max_lag=1: lower it"),
        ("environment.path=gues_number", "environment.path='gues_number' is no module: did you mean 'guess_number'?"),
        ("environment.path=json", "environment.path='json' has no build_env"),
        (
            "environment.args.blank=1",
            "environment.args.blank is nothing that environment.path='guess_number' takes: did",
        ),
        ("model.chat_template=/absent.jinja", "model.chat_template='/absent.jinja': No such file"),
        ("data.path=/absent.jsonl", "data.path='/absent.jsonl' is no file"),
        ("rollout.max_context_len=8", "a prompt of 9 tokens leaves no room within rollout.max_context_len=8"),
        ("rollout.max_context_len=99999", "rollout.max_context_len=99999 is more than the 4096 positions"),
        ("buffer.url=redis://127.0.0.1:1", "Redis at redis://127.0.0.1:1 (setting buffer.url) did not answer"),
        ("buffer.url=http://127.0.0.1", "setting buffer.url='http://127.0.0.1': "),
    ],
)
def test_a_wrong_setting(train_refused: Refusal, settings: Path, override: str, message: str) -> None:
    assert train_refused(settings, override).startswith(message)


def test_processes_of_environments_end_with_the_refusal(train_refused: Refusal, settings: Path) -> None:
    message = train_refused(settings, "environment.executor=processes", "rollout.max_context_len=8")
    assert message.startswith("a prompt of 9 tokens leaves no room")


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_redis_that_refuses_the_password(
    train_refused: Refusal, settings: Path, locked_redis: str, monkeypatch: pytest.MonkeyPatch, password: str | None
) -> None:
    if password is not None:
        monkeypatch.setenv("STREAM_RL_REDIS_PASSWORD", password)
    message = train_refused(settings, f"buffer.url={locked_redis}")
    assert "(setting buffer.url)" in message
    assert "buffer.password_env" in message


def test_a_redis_that_takes_the_password(
    stream_rl: StreamRL, settings: Path, locked_redis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAM_RL_REDIS_PASSWORD", "right")
    assert stream_rl("train", settings, f"buffer.url={locked_redis}", "--dry-run").code == 0


@pytest.mark.usefixtures("no_hub")
def test_a_model_that_is_nowhere(train_refused: Refusal, settings: Path) -> None:
    message = train_refused(settings, "model.path=models/absent")
    assert message.startswith("model.path='models/absent' is no folder, and the Hugging Face hub does not give it")


def test_a_folder_without_a_model(train_refused: Refusal, settings: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    message = train_refused(settings, f"model.path={tmp_path / 'empty'}")
    assert message.startswith(f"model.path='{tmp_path / 'empty'}' holds no model that loads")


def test_a_tokenizer_without_a_chat_template(
    train_refused: Refusal, settings: Path, tiny_model: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in tiny_model.iterdir():
        if file.suffix != ".jinja":
            (bare / file.name).write_bytes(file.read_bytes())
    tokenizer = orjson.loads((bare / "tokenizer_config.json").read_bytes())
    tokenizer.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_bytes(orjson.dumps(tokenizer))
    message = train_refused(settings, f"model.path={bare}")
    assert "has no chat template: set model.chat_template" in message


def test_a_row_without_the_prompt_field(train_refused: Refusal, settings: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "guess", "label": 3}\n{"promt": "guess"}\n')
    message = train_refused(settings, f"data.path={tmp_path / 'rows.jsonl'}")
    assert message.startswith("line 2 of data.path=")
    assert "has no field data.prompt_field='prompt': did you mean 'promt'?" in message


@pytest.mark.parametrize("setting", ["metrics.port", "engine.port"])
def test_a_taken_port(train_refused: Refusal, settings: Path, taken_port: int, setting: str) -> None:
    message = train_refused(settings, f"{setting}={taken_port}")
    assert message.startswith(f"{setting}={taken_port} cannot be used on 127.0.0.1 (Address already in use)")


def test_ports_of_every_engine_are_checked(train_refused: Refusal, settings: Path, taken_port: int) -> None:
    message = train_refused(settings, f"engine.port={taken_port - 1}", "engine.count=2")
    assert message.startswith((f"engine.port={taken_port}", f"engine.port={taken_port - 1}"))


def test_a_folder_with_a_run_asks_for_resume(
    stream_rl: StreamRL, train_refused: Refusal, settings: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_bytes(settings.read_bytes())
    message = train_refused(settings)
    assert (
        message == f"run={tmp_path / 'run'} holds a run already: pass --resume to go on with it, or name another folder"
    )
    assert stream_rl("train", settings, "--dry-run", "--resume").code == 0


def test_a_run_that_is_a_file(train_refused: Refusal, settings: Path) -> None:
    assert train_refused(settings, f"run={settings}") == f"run={settings} is a file: name a folder"


def test_settings_that_are_no_yaml(train_refused: Refusal, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("run: [a\nmodel: b\n")
    assert "is not YAML" in train_refused(tmp_path / "bad.yaml")


def test_settings_that_are_nowhere(train_refused: Refusal, tmp_path: Path) -> None:
    assert train_refused(tmp_path / "absent.yaml").startswith("cannot read settings")


@pytest.mark.parametrize(
    "command", ["status", "report", "inspect", "purge", "export --format jsonl", "dead-letters list"]
)
def test_a_folder_without_a_run(stream_rl: StreamRL, tmp_path: Path, command: str) -> None:
    assert refused(stream_rl(*command.split(), tmp_path)).startswith(f"{tmp_path} is no run folder")


def test_an_unknown_model_to_make(stream_rl: StreamRL, tmp_path: Path) -> None:
    assert "there are smollm2, tiny-text" in refused(stream_rl("make-model", "tiny", tmp_path / "out"))


def test_a_folder_that_is_there_is_not_overwritten(stream_rl: StreamRL, tiny_model: Path) -> None:
    assert "remove it or name another folder" in refused(stream_rl("make-model", "tiny-text", tiny_model))


def test_an_unknown_command_exits_alike(stream_rl: StreamRL) -> None:
    answer = stream_rl("trian")
    assert answer.code == 2
    assert "Traceback" not in answer.err


def test_the_installed_program_prints_no_traceback(settings: Path) -> None:
    command = [sys.executable, "-m", "stream_rl", "train", str(settings), "seeed=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "stream-rl: error: unknown setting 'seeed': did you mean 'seed'?\n"
    assert not (settings.parent / "run").exists()


@pytest.fixture
def run(tmp_path: Path, settings: Path) -> Path:
    """The folder of a run of which only the settings are there."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_bytes(settings.read_bytes())
    return folder


@pytest.mark.parametrize("command", ["status", "report"])
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.yaml", "run: a\n", "the settings in {} cannot be read, setting 'model' is missing"),
        ("run.json", "{", "{} is damaged, remove it"),
        ("run.json", '{"a": 1}', "{} is damaged, remove it"),
        ("steps.jsonl", "{\n", "{} line 1 is not JSON, remove that line"),
        ("summary.json", "{", "{} is not JSON, remove it"),
    ],
)
def test_a_run_folder_that_was_damaged(
    stream_rl: StreamRL, run: Path, *, command: str, file: str, content: str, message: str
) -> None:
    (run / file).write_text(content)
    assert refused(stream_rl(command, run)).startswith(message.format(run / file))


def test_a_run_that_is_running_is_not_run_twice(train_refused: Refusal, settings: Path, run: Path) -> None:
    with run_lock(run):
        message = train_refused(settings, "--resume")
    assert message == f"run={run} is running now: stop that process first, or name another folder"


def test_a_model_for_which_there_is_no_place(stream_rl: StreamRL, settings: Path) -> None:
    assert "cannot be written: Not a directory" in refused(stream_rl("make-model", "tiny-text", settings / "model"))
