"""What a supervisor leaves for those who look for its run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stream_rl.errors import DataError
from stream_rl.metrics.announcement import RunAnnouncement


def announcement(pid: int) -> RunAnnouncement:
    return RunAnnouncement(pid, 1.75e9, 12.5, "unix:///tmp/redis", "http://127.0.0.1:1/metrics")


def test_an_announcement_comes_back_as_it_was_written(tmp_path: Path) -> None:
    announcement(7).write(tmp_path)
    assert RunAnnouncement.read(tmp_path) == announcement(7)


def test_a_run_that_was_never_started_has_none(tmp_path: Path) -> None:
    assert RunAnnouncement.read(tmp_path) is None


@pytest.mark.parametrize("pid", ['"a"', "0", "-1", "null", "99999999999999999999"])
def test_a_process_id_that_cannot_be_is_damage(tmp_path: Path, pid: str) -> None:
    announcement(7).write(tmp_path)
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace("7", pid, 1))
    with pytest.raises(DataError, match=r"run\.json is damaged, remove it: pid"):
        RunAnnouncement.read(tmp_path)


def test_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with pytest.raises(DataError, match=r"run\.json cannot be read: Is a directory"):
        RunAnnouncement.read(tmp_path)


def test_it_lives_as_long_as_its_process() -> None:
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait(30)
    assert announcement(os.getpid()).alive
    assert not announcement(ended.pid).alive
