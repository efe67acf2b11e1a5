"""Small records and rules for the buffer's tests."""

from __future__ import annotations

import numpy as np

from stream_rl.buffer import LeasedSample, Outcome, RunRules, SampleStart, TrainerClaim, TrajectoryBuffer, Waiting
from stream_rl.sample import LedgerEntry, Status, StopReason, Turn, VersionSpan, WeightVersion

RULES = RunRules(groups_per_step=2, group_size=2, run_ahead=1, max_staleness=2, max_lag=3, max_refills_per_group=2)
START = SampleStart("2 + 2 = ?", np.array([5, 6, 7], np.int32), 0.7, 11, label={"answer": 4}, metadata={"level": 1})


def turn(index: int, tokens: int = 3, *, version: int = 0, complete: bool = True) -> Turn:
    """A turn whose content is told apart by its index."""
    return Turn(
        index,
        np.full(tokens, 100 + index, np.int32),
        np.full(tokens, -0.5, np.float32),
        np.full(2 if complete else 0, 9, np.int32),
        (VersionSpan(0, tokens, WeightVersion(version)),),
        complete,
        timings={"generate": 0.5},
        environment={"at": index},
        action=f"move {index}",
    )


def outcome(reward: float = 1.0) -> Outcome:
    """A completed episode."""
    return Outcome(Status.COMPLETED, StopReason.ENV_DONE, reward)


async def begin(buffer: TrajectoryBuffer, rules: RunRules = RULES) -> None:
    """Opens the run, with engine-0 serving version 0 and producer `p` alive for ten minutes."""
    await buffer.open_run(rules)
    await buffer.engine_joined("engine-0", "http://127.0.0.1:1", 1)
    await buffer.engine_serving("engine-0", WeightVersion(0))
    await buffer.heartbeat("p", 600.0)


async def finish(buffer: TrajectoryBuffer, sample: LeasedSample, reward: float = 1.0) -> None:
    """Plays a fresh or resumed sample to its end."""
    await buffer.commit(sample.lease, 0, [START, turn(0)])
    await buffer.commit(sample.lease, 2, [turn(1)], outcome(reward))


async def play(buffer: TrajectoryBuffer, count: int) -> list[LeasedSample]:
    """Leases samples and finishes them."""
    samples = await buffer.lease("p", count)
    for sample in samples:
        await finish(buffer, sample)
    return samples


async def entry(buffer: TrajectoryBuffer, claim: TrainerClaim, step: int) -> LedgerEntry:
    """A step that must be there to take."""
    taken = await buffer.take_step(claim, step)
    assert isinstance(taken, LedgerEntry)
    return taken


async def waits_for(buffer: TrajectoryBuffer, claim: TrainerClaim, step: int) -> str:
    """Why a step must not be there to take."""
    waiting = await buffer.take_step(claim, step)
    assert isinstance(waiting, Waiting)
    return waiting.reason


async def accounts(buffer: TrajectoryBuffer) -> tuple[int, int, int, int]:
    """Groups admitted, trained, live and complete, with I7 checked."""
    now = await buffer.snapshot()
    assert now.admitted == now.trained + now.filtered + now.dead_lettered + now.live
    return now.admitted, now.trained, now.live, now.complete
