"""An engine that dies while it receives, in a real gloo group: training goes on, and its successor gets the weights."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import torch
from receiving_engine import DYING, EngineProcess
from rollout_source import Rollouts
from safetensors.torch import load_file
from trainer_runs import Run

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.sample import WeightVersion

LAST = 6


class Receiving(Rollouts):
    """A producer whose first engine receives really, beside a second one that dies in version 2, and its successor."""

    def __init__(self, config: Config, buffer_url: str, folder: Path) -> None:
        super().__init__(config, buffer_url)
        self.engine = EngineProcess(folder / "first")  # type: ignore[assignment]
        self.dying, self.successor = EngineProcess(folder / "dying", "2"), EngineProcess(folder / "successor")

    async def _run(self) -> None:
        async with AsyncExitStack() as others:
            for engine in (self.dying, self.successor):
                await others.enter_async_context(engine)
            async with await TrajectoryBuffer.of(self._config, self._buffer_url) as buffer:
                await buffer.engine_joined("engine-1", self.dying.url, self.dying.process.pid)
            await super()._run()


def assert_same_weights(found: Path, wanted: Path) -> None:
    weights, expected = load_file(found), load_file(wanted)
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, atol=0, rtol=0, msg=name)


@pytest.mark.timeout(600)
def test_an_engine_that_dies_while_it_receives_is_put_out_and_its_successor_is_brought_up_to_date(
    config: Config, buffer_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = config.model_dump()
    tree["engine"] |= {"weight_transfer": "distributed", "update_timeout": 30.0}
    run = Run(Config.parse(tree), buffer_url)
    run.open()
    engine_left, engine_serving = TrajectoryBuffer.engine_left, TrajectoryBuffer.engine_serving
    put_out, served = [], []

    async def left(self: TrajectoryBuffer, engine_id: str) -> None:
        await engine_left(self, engine_id)
        put_out.append((engine_id, rollouts.dying.process.wait(10.0)))
        # Its keeper brings another process.
        await self.engine_joined(engine_id, rollouts.successor.url, rollouts.successor.process.pid)

    async def serving(self: TrajectoryBuffer, engine_id: str, version: WeightVersion, pid: int | None = None) -> None:
        served.append((engine_id, pid, version.step))
        if pid == rollouts.successor.process.pid:
            assert_same_weights(rollouts.successor.folder / str(version), rollouts.engine.folder / str(version))  # type: ignore[attr-defined]
        await engine_serving(self, engine_id, version, pid)

    monkeypatch.setattr(TrajectoryBuffer, "engine_left", left)
    monkeypatch.setattr(TrajectoryBuffer, "engine_serving", serving)
    with Receiving(run.config, run.url, tmp_path) as rollouts:
        run.train()
    assert [line["step"] for line in run.lines()] == list(range(1, LAST + 1))
    assert put_out == [("engine-1", DYING)]
    steps = {pid: [step for _, of, step in served if of == pid] for _, pid, _ in served}
    assert steps[1] == list(range(LAST + 1))
    assert steps[rollouts.dying.process.pid] == [0, 1]
    assert steps[rollouts.successor.process.pid] == list(range(2, LAST + 1))
    exported = run.config.folder / "checkpoints" / "hf" / "model.safetensors"
    assert_same_weights(rollouts.successor.folder / str(LAST), exported)
    assert asyncio.run(_serving_engines(run)) == {"engine-0": LAST, "engine-1": LAST}


async def _serving_engines(run: Run) -> dict[str, int]:
    async with await TrajectoryBuffer.of(run.config, run.url) as buffer:
        return {engine.engine_id: engine.version.step for engine in await buffer.engines() if engine.version}
