"""Calls the command line in this process, as the console script does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from command_line import Answer, StreamRL

from stream_rl.cli import main


@pytest.fixture
def stream_rl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> StreamRL:
    def call(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["stream-rl", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as exited:
            main()
        printed = capsys.readouterr()
        return Answer(int(exited.value.code or 0), printed.out, printed.err)

    return call


@pytest.fixture
def settings(tmp_path: Path, tiny_model: Path) -> Path:
    """A settings file that passes every check; its run folder is tmp_path/run."""
    path = tmp_path / "run.yaml"
    tree = {
        "run": str(tmp_path / "run"),
        "model": {"path": str(tiny_model)},
        "environment": {"path": "guess_number"},
        "rollout": {"max_turn_len": 2, "max_response_len": 64, "max_context_len": 128},
    }
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that cannot reach the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
