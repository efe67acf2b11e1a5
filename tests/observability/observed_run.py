"""A short real run, watched by a real Prometheus as deploy/ sets it up, with processes killed under way."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMMAND = Path(sys.executable).parent / "stream-rl"
DEADLINE = 600.0
KILLS = int(os.environ.get("KILLS", "3"))
"""Processes to kill under way: of one kind after the other, at moments drawn by chance."""
SECONDS_BETWEEN_KILLS = (3.0, 6.0)
SETTINGS = (
    "rollout.groups_per_step=8", "rollout.group_size=4", "producer.concurrency=32", "producer.lease_seconds=3",
    "producer.count=2", "trainer.mini_batches=2", "trainer.checkpoint_every=4", "evaluation.episodes=192",
    "supervision.max_deaths_without_progress=12", f"trainer.steps={10 + 3 * KILLS}",
)  # fmt: skip


@dataclass(frozen=True)
class Observed:
    """What is left of it: the run's folder and Prometheus, which still answers; times in seconds since the epoch."""

    folder: Path
    url: str
    began: float
    ended: float

    def ask(self, path: str, **parameters: str | float) -> Any:
        """What Prometheus's API answers."""
        query = urllib.parse.urlencode(parameters).encode()
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", data=query or None)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["data"]

    def series(self, expr: str) -> list[dict[str, Any]]:
        """The series that a query gives over the whole run, those without a number left out."""
        data = self.ask("query_range", query=self.filled(expr), start=self.began, end=self.ended, step=2)
        return [one for one in data["result"] if any(not math.isnan(float(value)) for _, value in one["values"])]

    def total(self, name: str, **labels: str) -> float:
        """The last value of a counter, over all its series."""
        matchers = ", ".join(f'{label}="{value}"' for label, value in labels.items())
        found = self.ask("query", query=f"sum (last_over_time({name}{{{matchers}}}[1h]))", time=self.ended)["result"]
        return float(found[0]["value"][1]) if found else 0.0

    @property
    def reward(self) -> float:
        """Of all finished samples together."""
        return self.total("stream_rl_sample_rewards_total", sign="+") - self.total(
            "stream_rl_sample_rewards_total", sign="-"
        )

    def filled(self, expr: str) -> str:
        """A dashboard's query with its variables."""
        values = {"$__interval": "10s", "$window": "60s", "$run": self.folder.name, "$environment": ".*"}
        for name, value in values.items():
            expr = expr.replace(name, value)
        return expr


@contextlib.contextmanager
def observed_run(folder: Path, model: Path) -> Iterator[Observed]:
    """Runs to the end, and then keeps Prometheus for as long as the block takes."""
    runs = folder / "runs"
    runs.mkdir()
    with contextlib.ExitStack() as processes:
        prometheus = start_prometheus(processes, folder, runs)
        began = time.time()
        arguments = [str(COMMAND), "train", str(ROOT / "examples" / "guess_number.yaml"), f"run={runs / 'observed'}",
                     f"model.path={model}", *SETTINGS]  # fmt: skip
        run = start(processes, folder / "run.log", arguments)
        _kill_some(run, runs / "observed")
        assert run.wait(DEADLINE) == 0, (folder / "run.log").read_text()
        yield Observed(runs / "observed", prometheus, began, time.time())


def start_prometheus(processes: contextlib.ExitStack, folder: Path, runs: Path) -> str:
    """Starts Prometheus and what tells it of the runs in a folder; its URL."""
    discovery, port = _free_port(), _free_port()
    start(processes, folder / "sd.log", [str(COMMAND), "metrics-sd", str(runs), "--port", str(discovery)])
    start(processes, folder / "prometheus.log", _prometheus(folder, discovery, port))
    return f"http://127.0.0.1:{port}"


def _prometheus(folder: Path, discovery: int, port: int) -> list[str]:
    """The command of Prometheus under the configuration of deploy/, but for its addresses and its pace."""
    program = shutil.which("prometheus")
    assert program is not None, "these tests need Prometheus: apt-get install prometheus"
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "2s"}
    (scraped,) = config["scrape_configs"]
    scraped["http_sd_configs"] = [{"url": f"http://127.0.0.1:{discovery}/", "refresh_interval": "1s"}]
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    return [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip


def _kill_some(run: subprocess.Popen[bytes], folder: Path) -> None:
    """Kills with -9 a producer, the trainer, the engine, and so on, once there has been a step."""
    chance = random.Random(0)
    for kind in (("producer", "trainer", "engine")[number % 3] for number in range(KILLS)):
        pid = _wait_for(run, folder, kind)
        os.kill(pid, signal.SIGKILL)
        time.sleep(chance.uniform(*SECONDS_BETWEEN_KILLS))


def _wait_for(run: subprocess.Popen[bytes], folder: Path, kind: str) -> int:
    """The process of a target that Prometheus would be told, once the run has made a step."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        assert run.poll() is None, "the run ended before all kills: give it more steps"
        if (folder / "steps.jsonl").exists() and (pids := _pids(folder).get(kind)):
            return pids[0]
        time.sleep(0.5)
    raise TimeoutError(f"no {kind} within {DEADLINE:g} s")


def _pids(folder: Path) -> Mapping[str, list[int]]:
    """Processes by kind, as the buffer knows them, that live and whose engine serves."""
    script = (
        "import asyncio, orjson, sys; from stream_rl.buffer import TrajectoryBuffer\n"
        "async def main():\n"
        "    async with await TrajectoryBuffer.connect(sys.argv[1], sys.argv[2], timeout=10.0) as buffer:\n"
        "        now = await buffer.snapshot()\n"
        "        found = {p.kind: [q.pid for q in now.processes if q.kind == p.kind] for p in now.processes}\n"
        "        found['engine'] = [e.pid for e in now.engines if e.state == 'serving']\n"
        "        print(orjson.dumps(found).decode())\n"
        "asyncio.run(main())\n"
    )
    url = orjson.loads((folder / "run.json").read_bytes())["buffer_url"]
    command = [sys.executable, "-c", script, url, folder.name]
    answer = subprocess.run(command, capture_output=True, timeout=60, check=False)
    if answer.returncode:
        return {}
    found: dict[str, list[int]] = orjson.loads(answer.stdout)
    return {kind: [pid for pid in pids if Path(f"/proc/{pid}").exists()] for kind, pids in found.items()}


def start(processes: contextlib.ExitStack, log: Path, command: list[str]) -> subprocess.Popen[bytes]:
    """A process that is ended with the others; what it prints goes to a file."""
    output = processes.enter_context(log.open("wb"))
    process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    processes.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
