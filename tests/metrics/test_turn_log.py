"""The logs under kill -9, torn lines and readers that follow."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.errors import DataError
from stream_rl.metrics.turn_log import _TAIL_BYTES, JsonLines, Tail, read

WRITES_THEN_HANGS = """
import sys, time
from stream_rl.metrics.turn_log import JsonLines
log = JsonLines(sys.argv[1])
for number in range(1000):
    log.append({"number": number})
log.extend({"number": number} for number in range(1000, 3000))
print("written", flush=True)
time.sleep(60)
"""


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    with JsonLines(tmp_path / "new" / "log.jsonl") as log:
        log.append({"a": 1})
        log.extend([{"b": [1, 2]}, {"c": "line\nbreak"}])
    assert list(read(log.path)) == [{"a": 1}, {"b": [1, 2]}, {"c": "line\nbreak"}]


def test_a_killed_process_loses_nothing_it_appended(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    command = [sys.executable, "-c", WRITES_THEN_HANGS, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        os.kill(writer.pid, signal.SIGKILL)
    assert [record["number"] for record in read(path)] == list(range(3000))


def test_a_batch_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    log = JsonLines(tmp_path / "log.jsonl")
    monkeypatch.setattr(os, "write", lambda _, data: written.append(bytes(data)) or len(data))
    log.extend({"n": n} for n in range(3))
    assert written == [b'{"n":0}\n{"n":1}\n{"n":2}\n']


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    log = JsonLines(tmp_path / "log.jsonl")
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:4]))
    log.append({"number": 12345})
    assert list(read(log.path)) == [{"number": 12345}]


def test_a_file_that_was_never_written_has_no_records(tmp_path: Path) -> None:
    assert list(read(tmp_path / "absent.jsonl")) == []


@given(lines=st.lists(st.dictionaries(st.text(max_size=3), st.integers(0, 9)), max_size=4), cut=st.integers(1, 400))
def test_a_torn_last_line_is_left_out_and_cut_off(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, int]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "log.jsonl"
    with JsonLines(path) as log:
        log.extend(lines)
        log.append({"torn": "x" * 400})
    path.write_bytes(path.read_bytes()[:-cut])
    assert list(read(path)) == lines
    with JsonLines(path) as log:
        log.append({"after": 1})
    assert list(read(path)) == [*lines, {"after": 1}]


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a":1}\n{"b":\n{"c":1}\n')
    with pytest.raises(DataError, match=r"log\.jsonl line 2 is not JSON"):
        list(read(path))


def test_arrays_dataclasses_and_nan_are_written(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Ended:
        number: int

    with JsonLines(tmp_path / "log.jsonl") as log:
        log.extend([{"mean": np.float32(0.5), "all": np.arange(2)}, Ended(3), {"loss": float("nan")}])
    assert list(read(log.path)) == [{"mean": 0.5, "all": [0, 1]}, {"number": 3}, {"loss": None}]


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.close()
    log.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        log.append({})


def test_a_tail_gives_each_whole_record_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tail = Tail(path)
    assert tail.new() == []
    path.write_bytes(b'{"n":1}\n{"n":2}\n{"n"')
    assert tail.new() == [{"n": 1}, {"n": 2}]
    assert tail.new() == []
    with path.open("ab") as file:
        file.write(b':3}\n{"n":4}\n')
    assert tail.new() == [{"n": 3}, {"n": 4}]


def test_a_log_that_is_full_is_put_aside_and_nothing_is_lost(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "p.jsonl", most_bytes=40)
    for number in range(12):
        log.append({"number": number})
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["p.0001.jsonl", "p.0002.jsonl", "p.0003.jsonl", "p.jsonl"]
    assert [record["number"] for name in files for record in read(tmp_path / name)] == list(range(12))


def test_a_log_goes_on_after_a_restart_at_the_size_it_had(tmp_path: Path) -> None:
    for number in range(6):
        with JsonLines(tmp_path / "p.jsonl", most_bytes=40) as log:
            log.append({"number": number})
    assert [record["number"] for record in read(tmp_path / "p.0001.jsonl")] == [0, 1, 2, 3]


def test_numbers_of_logs_may_grow_beyond_their_four_digits(tmp_path: Path) -> None:
    for number in (9998, 9999, 10000):
        (tmp_path / f"p.{number}.jsonl").write_text(f'{{"number":{number}}}\n')
    with JsonLines(tmp_path / "p.jsonl", most_bytes=1, kept=2) as log:
        log.append({"number": 10001})
    assert {path.name for path in tmp_path.iterdir()} == {"p.10000.jsonl", "p.10001.jsonl", "p.jsonl"}
    assert list(read(tmp_path / "p.10000.jsonl")) == [{"number": 10000}]


def test_a_torn_line_of_any_length_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    for whole in (b"", b'{"number":1}\n'):
        path.write_bytes(whole + b"x" * (2 * _TAIL_BYTES + 3))
        JsonLines(path).close()
        assert path.read_bytes() == whole


def test_only_so_many_logs_are_kept(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "p.jsonl", most_bytes=1, kept=2)
    (tmp_path / "p-1.0001.jsonl").touch()
    for number in range(5):
        log.append({"number": number})
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"p-1.0001.jsonl", "p.0004.jsonl", "p.0005.jsonl", "p.jsonl"}
