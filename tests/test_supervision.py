"""Deaths are forgiven while the run makes progress; what dies is brought back until the trainer is done."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.buffer import EmbeddedServer, RunSnapshot, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.errors import ConfigError, ProcessDied, RepeatedDeaths, StreamRLError
from stream_rl.supervision import DeathBudget, Supervisor
from stream_rl.testing.fake_engine import FakeEngineServer
from stream_rl.testing.token_sources import scripted


def test_deaths_without_progress_end_the_run_with_the_last_cause() -> None:
    budget = DeathBudget(3)
    budget.spend("engine", 7, "first")
    budget.spend("engine", 7, "second")
    with pytest.raises(RepeatedDeaths, match=r"engine died 3 times at step 7 .*third"):
        budget.spend("engine", 7, "third")


def test_kinds_have_budgets_of_their_own() -> None:
    budget = DeathBudget(2)
    budget.spend("engine", 0, "a")
    budget.spend("producer", 0, "b")
    with pytest.raises(RepeatedDeaths):
        budget.spend("producer", 0, "c")


@given(st.lists(st.booleans(), max_size=60), st.integers(2, 5))
def test_a_death_is_forgiven_exactly_while_fewer_than_the_limit_happened_since_the_last_step(
    events: list[bool], limit: int
) -> None:
    budget, step, deaths = DeathBudget(limit), 0, 0
    for progress in events:
        if progress:
            step, deaths = step + 1, 0
            continue
        deaths += 1
        if deaths == limit:
            with pytest.raises(RepeatedDeaths):
                budget.spend("trainer", step, "killed")
            return
        budget.spend("trainer", step, "killed")


class ScriptedProcesses:
    """Processes that are coroutines: `deaths` says how often the producer dies, `fault` how the trainer ends."""

    def __init__(self, deaths: int, fault: StreamRLError | None = None) -> None:
        self._deaths = deaths
        self._fault = fault
        self._trained = asyncio.Event()

    async def engine(self, index: int, up: Callable[[str, int], Awaitable[None]]) -> None:
        await up("http://127.0.0.1:1", 7)
        await asyncio.Event().wait()

    async def producer(self, index: int) -> None:
        if self._deaths:
            self._deaths -= 1
            raise ProcessDied("killed")
        self._trained.set()

    def let_train(self) -> None:
        self._trained.set()

    async def trainer(self) -> None:
        await self._trained.wait()
        if self._fault is not None:
            raise self._fault

    async def evaluation(self) -> float:
        return 0.5


class Lines:
    """A progress that keeps what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def update(self, snapshot: RunSnapshot, steps: Sequence[Mapping[str, Any]]) -> None:
        assert snapshot.ledger_steps == len(steps) == 0

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = Config.parse(
        {
            "run": str(tmp_path / "run"),
            "model": {"path": "models/tiny-text"},
            "environment": {"path": "guess_number"},
            "supervision": {"heartbeat": 0.02, "max_deaths_without_progress": 3},
        }
    )
    config.folder.mkdir()
    (config.folder / "config.yaml").write_text(config.dump())
    return config


async def supervise(config: Config, processes: ScriptedProcesses, lines: Lines) -> dict[str, Any]:
    with EmbeddedServer(config.folder / "buffer", fsync="no") as server:
        async with await TrajectoryBuffer.of(config, server.url) as buffer, asyncio.timeout(20):
            return await Supervisor(config, buffer, server, processes, lines).run(server.url, resume=False)


async def test_a_process_that_dies_is_brought_back_and_counted(config: Config) -> None:
    lines = Lines()
    summary = await supervise(config, ScriptedProcesses(deaths=2), lines)
    assert summary["recoveries"] == {"producer": 2, "engine": 0, "trainer": 0, "redis": 0}
    assert (summary["finished"], summary["eval_reward"]) == (True, 0.5)
    assert [line for line in lines.said if "died" in line] == ["producer-0 died, bringing it back: killed"] * 2


async def test_the_embedded_server_is_brought_back_and_then_counted(config: Config) -> None:
    processes, lines = ScriptedProcesses(deaths=0), Lines()

    async def trainer() -> None:
        os.kill(server.pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            while not any("redis died" in line for line in lines.said):
                await asyncio.sleep(0.01)

    processes.trainer = trainer  # type: ignore[method-assign]
    with EmbeddedServer(config.folder / "buffer") as server:
        async with await TrajectoryBuffer.of(config, server.url) as buffer, asyncio.timeout(20):
            summary = await Supervisor(config, buffer, server, processes, lines).run(server.url, resume=False)
    assert summary["recoveries"]["redis"] == 1


async def test_a_process_that_cannot_be_kept_alive_ends_the_run(config: Config) -> None:
    with pytest.raises(RepeatedDeaths, match="producer died 3 times at step 0"):
        await supervise(config, ScriptedProcesses(deaths=9), Lines())


async def test_what_a_user_did_wrong_ends_the_run_at_once(config: Config) -> None:
    with pytest.raises(ConfigError, match="no such thing"):
        await supervise(config, ScriptedProcesses(0, ConfigError("no such thing")), Lines())


async def test_an_interrupt_leaves_out_the_evaluation_and_the_run_is_finished(config: Config) -> None:
    processes, lines = ScriptedProcesses(deaths=0), Lines()

    async def evaluation() -> float:
        os.kill(os.getpid(), signal.SIGINT)
        return await asyncio.Event().wait() or 0.0

    processes.evaluation = evaluation  # type: ignore[method-assign]
    summary = await supervise(config, processes, lines)
    assert (summary["finished"], summary["eval_reward"]) == (True, None)
    assert "leaving out the evaluation, the training stands (again: stop at once)" in lines.said


async def test_an_external_engine_that_refuses_every_update_ends_the_run(config: Config) -> None:
    processes, lines = ScriptedProcesses(deaths=0), Lines()
    async with FakeEngineServer(scripted([1]), vocab_size=8) as engine:
        tree = config.model_dump()
        chosen = Config.parse({**tree, "engine": {**tree["engine"], "urls": [engine.url]}})
        with EmbeddedServer(config.folder / "buffer", fsync="no") as server:
            async with await TrajectoryBuffer.of(chosen, server.url) as buffer, asyncio.timeout(20):

                async def trainer() -> None:
                    while True:  # as Publication does with one that does not take its update
                        await asyncio.sleep(0.001)
                        for known in await buffer.engines():
                            await buffer.engine_left(known.engine_id)

                processes.trainer = trainer  # type: ignore[method-assign]
                with pytest.raises(RepeatedDeaths, match=r"engine died 3 times at step 0 .*did not take a weight up"):
                    await Supervisor(chosen, buffer, server, processes, lines).run(server.url, resume=False)
                assert (await buffer.snapshot()).recoveries["engine"] == 2
    told = [line for line in lines.said if line.startswith("engine-0 died, bringing it back")]
    assert len(told) == 3


async def test_a_producer_that_hangs_is_ended_brought_back_and_counted(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream_rl.heartbeats.LEAST_SECONDS", 0.1)
    processes, lines, lives = ScriptedProcesses(deaths=0), Lines(), []
    config = Config.parse({**config.model_dump(), "producer": {"lease_seconds": 0.3}})
    with EmbeddedServer(config.folder / "buffer", fsync="no") as server:
        async with await TrajectoryBuffer.of(config, server.url) as buffer, asyncio.timeout(20):

            async def producer(index: int) -> None:
                lives.append("begun")
                await asyncio.sleep(0.1)
                if len(lives) > 1:
                    processes.let_train()
                    return
                await buffer.heartbeat(f"producer-{index}", 0.3)
                try:
                    await asyncio.Event().wait()
                finally:
                    lives.append("ended")

            processes.producer = producer  # type: ignore[method-assign]
            summary = await Supervisor(config, buffer, server, processes, lines).run(server.url, resume=False)
    assert lives == ["begun", "ended", "begun"]
    assert summary["recoveries"] == {"producer": 1, "engine": 0, "trainer": 0, "redis": 0}
    (line,) = [line for line in lines.said if "died" in line]
    assert line.startswith("producer-0 died, bringing it back: no heartbeat for 0.6 s beyond producer.lease_seconds")
