"""The server's process: its command line, its end, and what ends with it. A small web server stands for SGLang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stream_rl.config import Config
from stream_rl.engine import guard
from stream_rl.engine.ports import free_port
from stream_rl.engine.server import EngineServer, launch_command, launch_environment
from stream_rl.errors import EngineUnavailable

# Answers like a server, with a child process in the same group, and writes both ids into a file.
SERVES = """
import http.server, os, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        self.do_GET()
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
with open(sys.argv[2] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[2] + ".new", sys.argv[2])
server.serve_forever()
"""
FAILS = "print('no such model: tiny-texd', flush=True); raise SystemExit(3)"


def config(**engine: object) -> Config:
    """A run whose model is a hub name."""
    return Config.parse(
        {
            "run": "runs/test",
            "seed": 5,
            "model": {"path": "org/model", "dtype": "bfloat16"},
            "environment": {"path": "guess_number"},
            "rollout": {"max_context_len": 2048},
            "engine": engine,
        }
    )


def server_of(script: str, folder: Path, *, start_timeout: float = 20.0) -> EngineServer:
    """A server that runs a Python script instead of SGLang."""
    port = free_port()
    command = [sys.executable, "-c", script, str(port), str(folder / "pids")]
    return EngineServer(
        command, dict(os.environ), port=port, log_path=folder / "logs" / "engine.log", start_timeout=start_timeout
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EngineServer]:
    """A ready server."""
    server = server_of(SERVES, tmp_path)
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def pids(folder: Path) -> list[int]:
    """The server's own process and its child."""
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def assert_ends(processes: list[int], *, within: float = 10.0) -> None:
    """Fails unless the processes are gone, or zombies whose reaper has not come yet."""
    deadline = time.monotonic() + within
    alive = processes
    while alive and time.monotonic() < deadline:
        alive = [pid for pid in alive if _runs(pid)]
        time.sleep(0.01)
    assert not alive


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_stop_ends_every_process_of_the_server(server: EngineServer, tmp_path: Path) -> None:
    processes = [*pids(tmp_path), server.pid]
    assert server.alive
    assert all(_runs(pid) for pid in processes)
    server.stop()
    assert not server.alive
    assert_ends(processes)
    server.stop()


def test_a_killed_server_takes_its_children_along(server: EngineServer, tmp_path: Path) -> None:
    main, child = pids(tmp_path)
    os.kill(main, signal.SIGKILL)
    with pytest.raises(EngineUnavailable, match="ended"):
        server.wait_exit()
    assert_ends([child])


def test_a_killed_guard_takes_the_server_along(server: EngineServer, tmp_path: Path) -> None:
    main, _ = pids(tmp_path)
    os.kill(server.pid, signal.SIGKILL)
    assert_ends([main])


def test_the_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    serve = [sys.executable, "-c", SERVES, str(free_port()), str(tmp_path / "pids")]
    guarded = [sys.executable, guard.__file__, "1", *serve]
    script = f"""
import subprocess, os, pathlib
subprocess.Popen({guarded!r}, stdin=subprocess.PIPE, start_new_session=True)
while not pathlib.Path({serve[-1]!r}).exists():
    pass
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", script], timeout=20, check=False)
    assert_ends(pids(tmp_path))


def test_a_server_that_dies_while_it_starts_shows_its_log(tmp_path: Path) -> None:
    server = server_of(FAILS, tmp_path)
    server.start()
    with pytest.raises(EngineUnavailable, match=r"ended while it started; .*engine\.log ends with:\nno such model"):
        server.wait_ready()
    server.stop()


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    server = server_of("import time; time.sleep(600)", tmp_path, start_timeout=0.1)
    server.start()
    with pytest.raises(EngineUnavailable, match=r"engine\.start_timeout=0\.1 s"):
        server.wait_ready()
    server.stop()
    assert not server.alive


def test_a_server_that_was_not_started_has_nothing_to_stop(tmp_path: Path) -> None:
    server = server_of(FAILS, tmp_path)
    assert not server.alive
    server.stop()


def option(command: list[str], name: str) -> str:
    """The value after an option."""
    return command[command.index(name) + 1]


def test_the_command_follows_the_settings() -> None:
    command = launch_command(config(device="cpu", extra_args=["--tp", "2"]), 1, 4711)
    assert command[1:3] == ["-m", "sglang.launch_server"]
    assert option(command, "--model-path") == "org/model"
    assert option(command, "--dtype") == "bfloat16"
    assert option(command, "--port") == "4711"
    assert option(command, "--random-seed") == "6"
    assert int(option(command, "--context-length")) >= 2048 + 7
    assert command[-2:] == ["--tp", "2"]


def test_only_a_cpu_gets_what_a_cpu_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    on_cpu, on_cuda = config(device="cpu", threads=3), config(device="cuda")
    assert option(launch_command(on_cpu, 0, 1), "--device") == "cpu"
    assert launch_environment(on_cpu)["OMP_NUM_THREADS"] == "3"
    assert "--device" not in launch_command(on_cuda, 0, 1)
    assert "SGLANG_USE_CPU_ENGINE" not in launch_environment(on_cuda)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_the_vision_tower_made_of_an_image_is_not_remembered(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight update flushes prefixes alone: features of the old weights would be used on."""
    monkeypatch.setenv("SGLANG_VLM_CACHE_SIZE_MB", "100")
    assert launch_environment(config(device=device))["SGLANG_VLM_CACHE_SIZE_MB"] == "0"


@pytest.mark.parametrize(("available", "device"), [(True, "cuda"), (False, "cpu")])
def test_auto_takes_the_gpu_where_there_is_one(available: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert launch_command(config(), 0, 1) == launch_command(config(device=device), 0, 1)


def test_a_seeded_server_starts_by_the_other_module() -> None:
    command = launch_command(config(device="cpu"), 0, 1, seeded=True)
    assert command[2] == "sglang_seeded_launch"
    assert "--enable-deterministic-inference" in command


def test_a_folder_needs_no_hub_and_a_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    by_name = config(device="cpu")
    in_folder = by_name.model_copy(update={"model": by_name.model.model_copy(update={"path": str(tmp_path)})})
    assert "HF_HUB_OFFLINE" not in launch_environment(by_name)
    assert launch_environment(in_folder)["HF_HUB_OFFLINE"] == "1"


def test_ports_follow_each_other_or_are_free(tmp_path: Path) -> None:
    fixed = [EngineServer.from_config(config(port=4711), index, log_path=tmp_path / "log") for index in (0, 1)]
    assert [server.url for server in fixed] == ["http://127.0.0.1:4711", "http://127.0.0.1:4712"]
    free = [EngineServer.from_config(config(), index, log_path=tmp_path / "log") for index in (0, 1)]
    assert free[0].url != free[1].url


def test_in_place_is_served_without_overlapping_batches() -> None:
    """An overlapping engine stamps a token with a version that did not write it."""
    assert "--disable-overlap-schedule" in launch_command(config(device="cuda", pause_mode="in_place"), 0, 1)
    assert "--disable-overlap-schedule" not in launch_command(config(device="cuda"), 0, 1)
