"""Of two processes that want to run a run, one does."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stream_rl.errors import ConfigError
from stream_rl.run_lock import is_locked, run_lock

HOLDER = """
import pathlib, sys, time
from stream_rl.run_lock import run_lock
with run_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    with run_lock(tmp_path), pytest.raises(ConfigError, match="is running now"), run_lock(tmp_path):
        pass
    with run_lock(tmp_path):
        pass


def test_it_shows_whether_it_is_held(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with run_lock(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="is running now"), run_lock(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
    with run_lock(tmp_path):
        pass
