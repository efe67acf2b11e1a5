"""Runs of the whole trainer against a real buffer, and the same steps again without any of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rollout_source import Rollouts

from stream_rl.buffer import RunRules, RunSnapshot, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.consumer.batching import flatten, mini_batch_groups
from stream_rl.consumer.collectives import process_group
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.trainer import run_trainer
from stream_rl.consumer.update import Updater
from stream_rl.consumer.weights import gather
from stream_rl.metrics.turn_log import read
from stream_rl.sample import Group

CPU = torch.device("cpu")


@dataclass
class Run:
    """An open run in a real buffer."""

    config: Config
    url: str
    starts: int = 0

    def train(self) -> None:
        """Runs a trainer to its end, in this process."""
        self.starts += 1
        self.config.folder.mkdir(exist_ok=True)
        init_method = f"file://{self.config.folder}/rendezvous-{self.starts}"
        run_trainer(self.config, rank=0, world_size=1, init_method=init_method, buffer_url=self.url)

    def ask(self, act: Callable[[TrajectoryBuffer], Any]) -> Any:
        """Awaits `act(buffer)` on a connection of its own."""

        async def connected() -> Any:
            async with await TrajectoryBuffer.connect(self.url, self.config.name, timeout=10.0) as buffer:
                return await act(buffer)

        return asyncio.run(connected())

    def rollouts(self) -> Rollouts:
        return Rollouts(self.config, self.url)

    def lines(self) -> list[dict[str, Any]]:
        return list(read(self.config.folder / "steps.jsonl"))

    def open(self) -> None:
        self.ask(lambda buffer: buffer.open_run(RunRules.of(self.config)))

    def snapshot(self) -> RunSnapshot:
        return self.ask(lambda buffer: buffer.snapshot())


def retrain(run: Run, loaded: dict[int, Group], folder: Path) -> dict[str, torch.Tensor]:
    """The weights after the run's steps, trained once more without a buffer, an engine or a death."""
    last = {line["step"]: line for line in run.lines()}
    with process_group(0, 1, f"file://{folder}/again", CPU, 60.0):
        updater = Updater(load_policy(run.config.model, CPU), run.config.trainer, CPU)
        for step in sorted(last):
            groups = [loaded[number] for number in last[step]["groups"]]
            dealt = mini_batch_groups(groups, run.config.trainer.mini_batches)
            updater.step([flatten(part, trainer_version=step - 1, max_staleness=2) for part in dealt], step)
        return gather(updater.policy, torch.float32)
