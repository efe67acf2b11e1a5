"""An evaluation of one engine's version while the run trains: the other engine goes on, and no group gets lost."""

from __future__ import annotations

import asyncio
import threading

import pytest
from rollout_source import VOCABULARY, Rollouts
from trainer_runs import Run

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.consumer.publication import Publication
from stream_rl.metrics.turn_log import read
from stream_rl.pinned_evaluation import PinnedEvaluations
from stream_rl.producer.evaluation import evaluate
from stream_rl.sample import WeightVersion
from stream_rl.testing import FakeEngineServer, seeded

EPISODES, HANGING = 6, 3
DEADLINE = 3.0


class Evaluated(Rollouts):
    """A producer with two engines, and beside it what the supervisor has: evaluations of whatever is pinned."""

    def __init__(self, config: Config, buffer_url: str) -> None:
        super().__init__(config, buffer_url)
        self.other = FakeEngineServer(seeded(1, VOCABULARY), vocab_size=VOCABULARY, version="default")
        self.first_ended = threading.Event()
        self.versions: list[tuple[str, str, str]] = []
        """Of each evaluation the pinned engine's version when it began and when it ended, and the other engine's."""
        self.seconds: list[float] = []
        self.differences: list[int] = []
        self.said: list[str] = []

    async def _run(self) -> None:
        async with self.other, await TrajectoryBuffer.of(self._config, self._buffer_url) as buffer:
            await buffer.engine_joined("engine-1", self.other.url, 1)
            evaluations = PinnedEvaluations(buffer, self.evaluate, self.said.append, pause=0.01)
            beside = [asyncio.create_task(task) for task in (evaluations.watch(), self.count(buffer))]
            try:
                await super()._run()
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)

    async def evaluate(self, engine_id: str) -> float:
        pinned, other = (self.engine, self.other) if engine_id == "engine-0" else (self.other, self.engine)
        before = pinned.version
        while int(other.version) <= int(before):
            await asyncio.sleep(0.01)
        for _ in range(HANGING):
            pinned.fail("/generate", "hang")
        result = await evaluate(self._config, buffer_url=self._buffer_url, engine_id=engine_id)
        self.versions.append((before, pinned.version, other.version))
        self.seconds.append(result.seconds)
        self.first_ended.set()
        return result.mean_reward

    async def count(self, buffer: TrajectoryBuffer) -> None:
        while True:
            now = await buffer.snapshot()
            self.differences.append(now.admitted - now.trained - now.filtered - now.dead_lettered - now.live)
            await asyncio.sleep(0.005)


@pytest.fixture
def run(config: Config, buffer_url: str) -> Run:
    """Six steps, an evaluation after every second."""
    tree = config.model_dump()
    tree["evaluation"] |= {"every": 2, "episodes": EPISODES, "deadline": DEADLINE}
    tree["rollout"] |= {"max_turn_len": 8, "max_response_len": 64, "max_context_len": 256}
    tree["scheduling"] |= {"max_staleness": 6, "max_lag": 6}
    run = Run(Config.parse(tree), buffer_url)
    run.open()
    return run


def test_one_engine_is_evaluated_while_the_other_gets_newer_versions_and_nothing_is_lost(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish = Publication.publish

    def waiting(self: Publication, version: WeightVersion) -> None:
        if version.step == 5:  # the run is not over before the first evaluation
            assert rollouts.first_ended.wait(120.0)
        publish(self, version)

    monkeypatch.setattr(Publication, "publish", waiting)
    with Evaluated(run.config, run.url) as rollouts:
        run.train()
    began, ended, other = rollouts.versions[0]
    assert began == ended == "2"
    assert int(other) >= 3
    (line, *_) = read(run.config.folder / "evaluations.jsonl")
    assert (line["step"], line["version"], line["versions"]) == (2, "2", ["2"])
    # A probe of the engine's weights may be among the requests that hang.
    assert EPISODES - HANGING <= line["episodes"] < EPISODES
    assert "evaluation episodes were cut by evaluation.deadline" in caplog.text
    assert DEADLINE <= rollouts.seconds[0] < 20 * DEADLINE
    assert rollouts.said[0].startswith("version 2 scores")
    # Released, the engine was brought up to date.
    assert min(int(engine.version) for engine in (rollouts.engine, rollouts.other)) >= 4
    assert len(rollouts.differences) > 20
    assert set(rollouts.differences) == {0}
    assert [line["step"] for line in run.lines()] == [1, 2, 3, 4, 5, 6]
    assert len({group for line in run.lines() for group in line["groups"]}) == run.snapshot().trained == 12
