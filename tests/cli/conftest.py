"""Calls the command line in this process, as the console script does, and the runs that it is called on."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command_line import Answer, StreamRL
from played_run import begin, fill

from stream_rl.buffer import EmbeddedServer
from stream_rl.cli import main
from stream_rl.metrics.announcement import RunAnnouncement
from stream_rl.run_lock import run_lock


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
def stopped(settings: Path) -> Path:
    """The folder of a run that was played and has stopped."""
    config = begin(settings)
    with EmbeddedServer(config.folder / "buffer") as server:
        asyncio.run(fill(server.url, config.name))
    return config.folder


@pytest.fixture
def live(settings: Path) -> Iterator[Path]:
    """The folder of a run that goes on: this process is its supervisor."""
    config = begin(settings)
    with EmbeddedServer(config.folder / "buffer") as server, run_lock(config.folder):
        asyncio.run(fill(server.url, config.name))
        RunAnnouncement(os.getpid(), 0.0, 0.0, server.url, "").write(config.folder)
        yield config.folder


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that cannot reach the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
