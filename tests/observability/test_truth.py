"""Twenty kills at random moments, of supervisor, producers and trainer: Prometheus still says what the buffer recorded.

The processes are small ones, so that twenty deaths take seconds; test_observed.py kills real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from observed_run import Observed, start, start_prometheus

from stream_rl.buffer import EmbeddedServer, RunRules, RunSnapshot, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.metrics.announcement import RunAnnouncement
from stream_rl.metrics.run_folder import ended_samples, surviving_steps, turn_records
from stream_rl.run_lock import run_lock
from stream_rl.sample import WeightVersion

pytestmark = pytest.mark.timeout(600)

PROGRAM = Path(__file__).with_name("small_process.py")
ROLES = ("supervisor", "producer-0", "producer-1", "trainer-0")
DEATHS = int(os.environ.get("DEATHS", "20"))
STEPS = 30 + 6 * DEATHS
DEADLINE = 400.0
TREE = {
    "model": {"path": "m"}, "environment": {"path": "guess_number"},
    "rollout": {"groups_per_step": 2, "group_size": 4}, "trainer": {"steps": STEPS},
    "scheduling": {"run_ahead": 3, "max_staleness": 3}, "supervision": {"heartbeat": 0.2},
    "metrics": {"turn_log_mib": 1},
}  # fmt: skip


class Small:
    """The run's processes; those that were killed are started again."""

    def __init__(self, processes: contextlib.ExitStack, folder: Path, url: str) -> None:
        self._processes, self._folder, self._url = processes, folder, url
        self.live = {role: self._started(role) for role in ROLES}

    def kill(self, role: str) -> None:
        self.live[role].send_signal(signal.SIGKILL)
        self.live[role].wait(30)
        self.live[role] = self._started(role)

    def _started(self, role: str) -> subprocess.Popen[bytes]:
        log = self._folder.parent.parent / f"{role}-{time.monotonic_ns()}.log"
        command = [sys.executable, str(PROGRAM), role, str(self._folder), self._url]
        return start(self._processes, log, command)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Observed, RunSnapshot]]:
    """Prometheus, and the buffer's own counts, after all deaths and the run's end."""
    root = tmp_path_factory.mktemp("killed")
    config = Config.parse({"run": str(root / "runs" / "killed"), **TREE})
    config.folder.mkdir(parents=True)
    (config.folder / "config.yaml").write_text(config.dump())
    with contextlib.ExitStack() as processes:
        server = processes.enter_context(EmbeddedServer(root / "valkey", fsync="no"))
        processes.enter_context(run_lock(config.folder))
        asyncio.run(_open(config, server.url))
        began, prometheus = time.time(), start_prometheus(processes, root, root / "runs")
        snapshot = asyncio.run(_killing(Small(processes, config.folder, server.url), config, server.url, prometheus))
        yield Observed(config.folder, prometheus, began, time.time()), snapshot


async def _open(config: Config, url: str) -> None:
    RunAnnouncement(os.getpid(), time.time(), 0.0, url, "").write(config.folder)
    async with await TrajectoryBuffer.of(config, url) as buffer:
        await buffer.open_run(RunRules.of(config))
        await buffer.engine_joined("engine-0", "http://127.0.0.1:1", 1)
        await buffer.engine_serving("engine-0", WeightVersion(0))


async def _killing(run: Small, config: Config, url: str, prometheus: str) -> RunSnapshot:
    """Kills as the run goes on, once every few steps, and waits until Prometheus has seen its end."""
    chance, deaths = random.Random(7), 0
    async with asyncio.timeout(DEADLINE), await TrajectoryBuffer.of(config, url) as buffer:
        while (snapshot := await buffer.snapshot()).ledger_steps < STEPS or deaths < DEATHS:
            if deaths < DEATHS and snapshot.ledger_steps >= deaths * STEPS // (DEATHS + 4):
                role = chance.choice(ROLES)
                await asyncio.sleep(chance.uniform(0.0, 0.5))
                await asyncio.to_thread(run.kill, role)
                if role != "supervisor":
                    await buffer.count_recovery("producer" if role.startswith("producer") else "trainer")
                deaths += 1
            await asyncio.sleep(0.1)
        while await buffer.outcomes(1):
            await asyncio.sleep(0.1)
        written = time.time() + 3 * config.supervision.heartbeat
        while not await asyncio.to_thread(_seen, prometheus, "supervisor", written):
            await asyncio.sleep(0.2)
        return await buffer.snapshot()


def _seen(prometheus: str, name: str, after: float) -> bool:
    """Whether Prometheus has looked at a process after a moment."""
    targets = Observed(Path(), prometheus, 0.0, 0.0).ask("targets")["activeTargets"]
    found = [one for one in targets if one["labels"]["instance"] == name and one["health"] == "up"]
    return any(datetime.fromisoformat(one["lastScrape"]).timestamp() > after for one in found)


def test_what_ended_is_counted_as_the_buffer_recorded_it(killed: tuple[Observed, RunSnapshot]) -> None:
    observed, snapshot = killed
    records = ended_samples(observed.folder)
    ended = [sample for sample in records if sample["kind"] != "restarted"]
    finished = [sample for sample in ended if sample["kind"] == "finished"]
    assert len(records) == snapshot.outcomes
    assert observed.total("stream_rl_turns_committed_total") == snapshot.committed_turns
    for (status, reason), count in Counter((one["status"], one["stop_reason"]) for one in ended).items():
        assert observed.total("stream_rl_samples_ended_total", status=status, reason=reason) == count
    assert observed.total("stream_rl_generated_tokens_total") == sum(one["generated"] for one in ended)
    assert observed.total("stream_rl_sample_reward_count") == len(finished)
    assert observed.reward == pytest.approx(math.fsum(one["reward"] for one in finished))
    assert observed.total("stream_rl_turns_per_sample_sum") == sum(one["turns"] for one in finished)
    assert observed.total("stream_rl_sibling_wait_seconds_count") == snapshot.trained


def test_steps_are_counted_as_the_ledger_has_them(killed: tuple[Observed, RunSnapshot]) -> None:
    observed, snapshot = killed
    steps = surviving_steps(observed.folder / "steps.jsonl")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert observed.total("stream_rl_trainer_steps_total") == snapshot.ledger_steps == STEPS
    assert observed.total("stream_rl_trained_tokens_total") == sum(
        lag["tokens"] for step in steps for lag in step["by_lag"].values()
    )
    assert observed.total("stream_rl_trained_samples_total") == STEPS * 2 * 4


def test_groups_add_up_and_every_death_was_counted(killed: tuple[Observed, RunSnapshot]) -> None:
    observed, snapshot = killed
    assert observed.total("stream_rl_recoveries_total") == sum(snapshot.recoveries.values())
    assert observed.total("stream_rl_groups", state="trained") == snapshot.trained == STEPS * 2
    assert observed.total("stream_rl_accounting_difference_groups") == 0
    assert observed.total("stream_rl_refills_total") == snapshot.refills


def test_what_processes_count_themselves_loses_no_more_than_their_deaths(
    killed: tuple[Observed, RunSnapshot],
) -> None:
    """Rates see a restart: the growth of all turns is near the log's, which has every acknowledged one."""
    observed, _ = killed
    logged = sum(record["complete"] for record in turn_records(observed.folder))
    query = "sum (increase(stream_rl_turn_index_turns_total[1h]))"
    (grown,) = observed.ask("query", query=query, time=observed.ended)["result"]
    assert 0.4 * logged < float(grown["value"][1]) < 1.3 * logged
