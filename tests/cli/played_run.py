"""A run that was played a little, for commands that read trajectories: what lies in its buffer, by group.

0, 1    trained in step 1, both samples completed
2       a dead letter, with one finished sample
3       live: a sample with one turn and an open one, and one never begun
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stream_rl.buffer import Outcome, RunRules, SampleStart, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.sample import Status, StopReason, Turn, VersionSpan, WeightVersion

RULES = RunRules(groups_per_step=2, group_size=2, max_refills_per_group=0, total_groups=200)
START = SampleStart("guess", np.array([3, 4, 5], np.int32), 0.7, 11, label=4, metadata={"level": 1})


def turn(index: int, *, complete: bool = True, reward: float = 0.0) -> Turn:
    """Three tokens of two versions, and an observation of two when it is complete."""
    spans = (VersionSpan(0, 2, WeightVersion(0)), VersionSpan(2, 3, WeightVersion(1, 1)))
    return Turn(
        index, np.array([6, 7, 8], np.int32), np.array([-0.1, -1e-7, -2.5], np.float32),
        np.full(2 if complete else 0, 9, np.int32), spans, complete, reward=reward, env_retries=index,
        timings={"generate": 0.25, "env_step": 0.125},
    )  # fmt: skip


def begin(settings: Path, *overrides: str) -> Config:
    """Makes the run's folder, as `train` does, and starts nothing."""
    config = Config.load(settings, overrides)
    config.folder.mkdir()
    (config.folder / "config.yaml").write_text(config.dump())
    return config


async def fill(url: str, name: str) -> None:
    """Plays the run of this name in the Redis at `url`."""
    async with await TrajectoryBuffer.connect(url, name) as buffer:
        await play(buffer)


async def play(buffer: TrajectoryBuffer) -> None:
    """Opens the run and plays it to the state above."""
    await buffer.open_run(RULES)
    await buffer.engine_joined("engine-0", "http://127.0.0.1:1", 1)
    await buffer.engine_serving("engine-0", WeightVersion(0))
    await buffer.heartbeat("producer-0", 60.0)
    for sample in await buffer.lease("producer-0", 4):
        end = Outcome(Status.COMPLETED, StopReason.ENV_DONE, sample.lease.sample_id.index / 2)
        await buffer.commit(sample.lease, 0, [START, turn(0), turn(1, reward=0.5)], end)
    await buffer.take_step(await buffer.claim_trainer(), 1)
    first, second = await buffer.lease("producer-0", 2)
    await buffer.commit(first.lease, 0, [START, turn(0)], Outcome(Status.TRUNCATED, StopReason.MAX_TURNS, 0.25))
    await buffer.fail(second.lease, StopReason.ENV_FAILURE, "the world \x1b[31mis gone\nsecond line")
    (live,) = await buffer.lease("producer-0", 1)
    await buffer.commit(live.lease, 0, [START, turn(0), turn(1, complete=False)])
    await buffer.heartbeat("producer-0", 0.0)
