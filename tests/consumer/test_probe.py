"""After an update an engine must give the trainer's log-prob of the probe, or it is stopped and put out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import REGISTRY
from transformers import AutoModelForCausalLM

from stream_rl.buffer import EmbeddedServer, RunRules, TrajectoryBuffer
from stream_rl.config import ModelConfig
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.probe import LENGTH, Probe
from stream_rl.consumer.publication import Publication
from stream_rl.engine.publish import UPDATE_PARTS, EngineUpdate, WeightPublisher
from stream_rl.sample import WeightVersion
from stream_rl.testing import FakeEngineServer, seeded

CPU = torch.device("cpu")
VERSION = WeightVersion(3)
pytestmark = pytest.mark.usefixtures("one_rank")


@pytest.fixture
def probe(model_path: Path) -> Probe:
    return Probe(load_policy(ModelConfig(path=str(model_path)), CPU), CPU, "float32")


class Sent:
    """A transport that has sent everything."""

    def prepare(self, version: WeightVersion) -> None: ...

    async def send(self, engines: Sequence[tuple[str, str]], version: WeightVersion) -> list[EngineUpdate]:
        return [EngineUpdate(engine_id, dict.fromkeys(UPDATE_PARTS, 0.1)) for engine_id, _ in engines]

    async def close(self) -> None: ...


@pytest.fixture
def engine() -> Iterator[FakeEngineServer]:
    """In a loop of its own, as a server is."""
    server, loop = FakeEngineServer(seeded(0, 32), vocab_size=32, version=str(VERSION)), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    yield server
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def test_it_is_the_models_own_log_prob_of_the_last_token(probe: Probe, model_path: Path) -> None:
    model, tokens = AutoModelForCausalLM.from_pretrained(model_path), torch.from_numpy(probe.tokens).long()
    with torch.no_grad():
        logits = model(tokens[None]).logits[0, -2]
    assert len(tokens) == LENGTH
    assert probe.log_prob() == pytest.approx(float(logits.log_softmax(-1)[tokens[-1]]), abs=1e-5)


@pytest.mark.parametrize(
    ("difference", "outcome"),
    [(0.0, "agreed"), (0.005, "agreed"), (0.5, "disagreed"), (float("nan"), "disagreed"), (None, "unanswered")],
)
def test_an_engine_that_computes_something_else_is_stopped_and_put_out(
    probe: Probe, engine: FakeEngineServer, tmp_path: Path, difference: float | None, outcome: str
) -> None:
    engine.input_log_prob = None if difference is None else probe.log_prob() + difference
    before = _count(outcome)
    with EmbeddedServer(tmp_path / "data") as server, asyncio.Runner() as runner:
        buffer = runner.run(TrajectoryBuffer.connect(server.url, "run"))
        runner.run(_join(buffer, engine.url))
        publisher = WeightPublisher(timeout=5.0)
        publication = Publication(runner, buffer, publisher, Sent(), probe)
        publication.publish(VERSION)
        runner.run(_until_judged(publication))
        left = runner.run(buffer.engines())
        publication.close()
        runner.run(publisher.close())
        runner.run(buffer.close())
    assert _count(outcome) == before + 1
    assert [one.engine_id for one in left] == ([] if outcome == "disagreed" else ["engine-0"])
    assert engine.paused == (outcome == "disagreed")


async def _join(buffer: TrajectoryBuffer, url: str) -> None:
    await buffer.open_run(RunRules(groups_per_step=2, group_size=2, run_ahead=1))
    await buffer.engine_joined("engine-0", url, 1)


async def _until_judged(publication: Publication) -> None:
    async with asyncio.timeout(10):
        while publication._asked:
            await publication.update_behind()
            await asyncio.sleep(0.01)


def _count(outcome: str) -> Any:
    labels = {"engine": "engine-0", "outcome": outcome}
    return REGISTRY.get_sample_value("stream_rl_engine_probes_total", labels) or 0.0
