"""Records of trained groups that Redis lost: they are played again for a replay, and the group stays trained."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from journal_builders import RULES, START, accounts, begin, entry, finish, outcome, play, turn, waits_for
from rewinding_server import RewindingServer

from stream_rl.buffer import LeasedSample, TrainerClaim, TrajectoryBuffer
from stream_rl.errors import NoTrainableBatch, RecordsLost
from stream_rl.sample import LedgerEntry, StopReason, WeightVersion


@pytest.fixture
async def buffer(rewinding: RewindingServer) -> AsyncIterator[TrajectoryBuffer]:
    async with await TrajectoryBuffer.connect(rewinding.url, "run") as connected:
        await begin(connected, replace(RULES, run_ahead=1, max_untrainable_completions=2, max_refills_per_group=1))
        yield connected


async def take_and_lose(buffer: TrajectoryBuffer, rewinding: RewindingServer, claim: TrainerClaim) -> LedgerEntry:
    """Step 1 of groups 0 and 1, of which Redis loses the end of sample 0-0."""
    first, *others = await buffer.lease("p", 4)
    for sample in others:
        await finish(buffer, sample)
    await buffer.commit(first.lease, 0, [START, turn(0)])
    rewinding.mark()
    await buffer.commit(first.lease, 2, [turn(1)], outcome(0.25))
    taken = await entry(buffer, claim, 1)
    rewinding.rewind()
    return taken


async def lost_sample(buffer: TrajectoryBuffer) -> LeasedSample:
    """Sample 0-0, before anything new, with the turns that Redis kept of it."""
    for _ in range(2):  # behind the first call the producer says which samples it knows to have ended
        for sample in await buffer.lease("p", 1):
            if sample.lease.sample_id.group == 0:
                return sample
    raise AssertionError("sample 0-0 is not played again")


async def test_a_step_lost_before_it_was_read_waits_for_its_records(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    claim = await buffer.claim_trainer()
    taken = await take_and_lose(buffer, rewinding, claim)
    with pytest.raises(RecordsLost, match="sample 0-0 has not ended"):
        await buffer.load_groups(taken.groups)
    assert await waits_for(buffer, claim, 1) == "records_lost"
    again = await lost_sample(buffer)
    assert [one.index for one in again.turns] == [0]
    assert await waits_for(buffer, claim, 1) == "records_lost"
    await buffer.commit(again.lease, 2, [turn(1), turn(2)], outcome(0.5))
    assert await entry(buffer, claim, 1) == taken
    first, _ = await buffer.load_groups(taken.groups)
    assert [(len(sample.turns), sample.reward) for sample in first.samples] == [(3, 0.5), (2, 1.0)]
    assert (await accounts(buffer))[1] == 2
    assert await waits_for(buffer, claim, 2) == "not_enough_complete"


async def test_a_trainer_that_died_with_redis_replays_once_the_records_are_there_again(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    claim = await buffer.claim_trainer()
    taken = await take_and_lose(buffer, rewinding, claim)
    await waits_for(buffer, claim, 2)  # asserted; then this trainer dies, its checkpoint older than step 1
    async with await TrajectoryBuffer.connect(rewinding.url, "run") as other:
        newer = await other.claim_trainer()
        assert newer.ledger_steps == 1
        assert await waits_for(other, newer, 1) == "records_lost"
        rewinding.mark()
        rewinding.rewind()  # another restart asserts the replay that waits
        again = await lost_sample(buffer)
        await buffer.commit(again.lease, 2, [turn(1)], outcome())
        assert await entry(other, newer, 1) == taken
        assert len(await other.load_groups(taken.groups)) == 2


async def test_a_trained_group_is_never_dead_lettered_and_a_hopeless_one_ends_the_run(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    claim = await buffer.claim_trainer()
    await take_and_lose(buffer, rewinding, claim)
    for attempt in range(3):
        assert await waits_for(buffer, claim, 1) == "records_lost"
        again = await lost_sample(buffer)
        assert again.lease.sample_id.attempt == attempt
        await buffer.fail(again.lease, StopReason.ENV_FAILURE, "")
    assert await buffer.dead_letters() == []
    assert (await accounts(buffer))[1] == 2
    with pytest.raises(NoTrainableBatch):
        await buffer.take_step(claim, 1)


async def test_a_checkpoint_ends_what_is_played_again(buffer: TrajectoryBuffer, rewinding: RewindingServer) -> None:
    claim = await buffer.claim_trainer()
    await take_and_lose(buffer, rewinding, claim)
    await waits_for(buffer, claim, 2)
    await buffer.engine_serving("engine-0", WeightVersion(1))
    before = await buffer.snapshot()
    assert before.leased + before.resumable == 1
    await buffer.checkpoints_kept(claim, 1)
    now = await buffer.snapshot()
    assert (now.leased, now.resumable, now.pending, now.journal_bytes) == (0, 0, 0, 0)
    assert {sample.lease.sample_id.group for sample in await play(buffer, 4)} == {2, 3}
    assert (await entry(buffer, claim, 2)).groups == (2, 3)
