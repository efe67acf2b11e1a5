"""A trainer that is killed at any moment: every group is trained exactly once, and the weights are as if nothing was.

The trainer is a process of its own here, ended by SIGKILL, also while a checkpoint is being written.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from trainer_runs import Run, retrain

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.sample import Group

STEPS = 20
DEADLINE = 120.0
KILLS = sorted(random.Random(3).sample(range(2, 17), 3))


def train_and_record(run: Run, folder: Path) -> None:
    """One life of a trainer; every group that it reads is kept in `folder`."""
    torch.set_num_threads(1)
    load_groups = TrajectoryBuffer.load_groups

    async def recording(self: TrajectoryBuffer, wanted: Any, *ahead: Any) -> list[Group]:
        groups = await load_groups(self, wanted, *ahead)
        for group in groups:
            partial = folder / f"partial-{os.getpid()}"
            partial.write_bytes(pickle.dumps(group))
            partial.rename(folder / str(group.index))
        return groups

    TrajectoryBuffer.load_groups = recording  # type: ignore[method-assign]
    run.train()


@pytest.fixture
def long_run(config: Config, buffer_url: str) -> Run:
    """Twenty steps, a checkpoint every third."""
    tree = config.model_dump()
    tree["trainer"] |= {"steps": STEPS, "checkpoint_every": 3}
    run = Run(Config.parse(tree), buffer_url)
    run.open()
    return run


def test_kills_change_nothing_in_the_weights(long_run: Run, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stream_rl.consumer.trainer"])
    folder, chance = tmp_path / "groups", random.Random(4)
    folder.mkdir()

    def start() -> Any:
        long_run.starts += 1
        trainer = context.Process(target=train_and_record, args=(long_run, folder))
        trainer.start()
        return trainer

    with long_run.rollouts():
        for step in KILLS:
            trainer = start()
            end = time.monotonic() + DEADLINE
            while long_run.snapshot().ledger_steps < step:
                assert trainer.is_alive()
                assert time.monotonic() < end
            time.sleep(chance.uniform(0.0, 0.1))
            trainer.kill()
            trainer.join(DEADLINE)
            assert trainer.exitcode == -9
        trainer = start()
        trainer.join(DEADLINE)
        assert trainer.exitcode == 0

    lines = long_run.lines()
    by_step: dict[int, set[tuple[int, ...]]] = {}
    for line in lines:
        by_step.setdefault(line["step"], set()).add(tuple(line["groups"]))
    assert sorted(by_step) == list(range(1, STEPS + 1))
    assert all(len(trained) == 1 for trained in by_step.values()), "a replay had other groups"
    groups = [group for (trained,) in by_step.values() for group in trained]
    assert len(groups) == len(set(groups)) == long_run.snapshot().trained
    assert lines[-1]["incarnation"] == len(KILLS)

    loaded = {int(path.name): pickle.loads(path.read_bytes()) for path in folder.iterdir() if path.name.isdigit()}
    weights = load_file(long_run.config.folder / "checkpoints" / "hf" / "model.safetensors")
    for name, value in retrain(long_run, loaded, tmp_path).items():
        torch.testing.assert_close(weights[name], value, atol=0, rtol=0)
