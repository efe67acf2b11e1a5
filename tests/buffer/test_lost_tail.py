"""Redis comes back without its newest writes: nothing is trained twice, no prompt is skipped, and the run goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import orjson
import pytest
from journal_builders import RULES, START, accounts, begin, entry, finish, outcome, play, turn, waits_for
from rewinding_server import RewindingServer

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.errors import LeaseLost, LedgerMismatch, RecordsLost, TrainerSuperseded
from stream_rl.producer.journal import BufferJournal
from stream_rl.sample import WeightVersion


@pytest.fixture
async def buffer(rewinding: RewindingServer) -> AsyncIterator[TrajectoryBuffer]:
    async with await TrajectoryBuffer.connect(rewinding.url, "run") as connected:
        await begin(connected, replace(RULES, run_ahead=3))
        yield connected


async def test_a_step_that_redis_lost_is_asserted_before_the_next(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    await play(buffer, 8)
    rewinding.mark()
    claim = await buffer.claim_trainer()
    first = await entry(buffer, claim, 1)
    rewinding.rewind()
    assert (await buffer.snapshot()).ledger_steps == 0
    assert await buffer.lease("p", 8) == [], "admission must wait for the ledger"
    second = await entry(buffer, claim, 2)
    assert (first.groups, second.groups) == ((0, 1), (2, 3))
    assert await entry(buffer, claim, 1) == first
    assert [group.index for group in await buffer.load_groups(first.groups)] == [0, 1]
    assert await accounts(buffer) == (4, 4, 0, 0)
    assert len(await buffer.lease("p", 8)) == 8


async def test_groups_trained_beyond_the_admissions_that_redis_kept_are_never_prompted_again(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    claim = await buffer.claim_trainer()
    await play(buffer, 2)
    rewinding.mark()
    held = await buffer.lease("p", 2)
    await play(buffer, 4)
    assert (await entry(buffer, claim, 1)).groups == (0, 2)
    rewinding.rewind()
    assert await waits_for(buffer, claim, 2) == "not_enough_complete"
    with pytest.raises(LeaseLost):
        await buffer.commit(held[0].lease, 0, [START])
    # Group 2 itself is played again, for a replay; its records were lost.
    again = await buffer.lease("p", 6)
    assert [(s.lease.sample_id.group, s.prompt_index) for s in again] == [
        (2, 2), (2, 2), (3, 1), (3, 1), (4, 3), (4, 3)
    ]  # fmt: skip
    with pytest.raises(RecordsLost, match="sample 2-0 has not ended"):
        await buffer.load_groups([0, 2])
    await buffer.checkpoints_kept(claim, 1)
    assert (await accounts(buffer))[:2] == (4, 2)
    with pytest.raises(LeaseLost):
        await buffer.commit(again[0].lease, 0, [START])


@pytest.mark.parametrize(("how", "again"), [("unfinished", ["0-0"]), ("filtered", ["0-0", "0-1"]), ("dead", ["0-0-1"])])
async def test_a_trained_group_that_went_another_way_meanwhile_counts_as_trained_and_is_played_again(
    buffer: TrajectoryBuffer, rewinding: RewindingServer, how: str, again: list[str]
) -> None:
    await buffer.open_run(replace(RULES, filter_zero_variance=how != "unfinished", max_refills_per_group=0))
    claim = await buffer.claim_trainer()
    first, *rest = await buffer.lease("p", 4)
    for sample in rest:
        await finish(buffer, sample, 0.1 * sample.lease.sample_id.index)
    rewinding.mark()
    await finish(buffer, first, 0.7)
    taken = await entry(buffer, claim, 1)
    rewinding.rewind()
    if how == "filtered":
        await finish(buffer, first, 0.1)
    if how == "dead":
        await buffer.fail(first.lease, outcome().stop_reason, "")
    assert await waits_for(buffer, claim, 2) == "not_enough_complete"
    assert await waits_for(buffer, claim, 1) == "records_lost"
    assert await accounts(buffer) == (2, 2, 0, 0)
    assert await buffer.dead_letters() == []
    if how == "unfinished":
        await buffer.lease("p", 1)  # Redis hears from its producer which samples it knows to have ended
    assert [str(sample.lease.sample_id) for sample in await play(buffer, len(again))] == again
    assert await entry(buffer, claim, 1) == taken
    assert [group.index for group in await buffer.load_groups(taken.groups)] == list(taken.groups)


async def test_a_claim_that_redis_lost_is_asserted_unless_a_newer_one_followed(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    await play(buffer, 8)
    await buffer.claim_trainer()
    rewinding.mark()
    claim = await buffer.claim_trainer()
    first = await entry(buffer, claim, 1)
    rewinding.rewind()
    assert (await entry(buffer, claim, 2)).groups == (2, 3)
    assert (await buffer.snapshot()).incarnation == claim.incarnation == 1
    rewinding.rewind()
    # Another trainer gets the number that was lost: the nonce tells them apart.
    async with await TrajectoryBuffer.connect(rewinding.url, "run") as other:
        newer = await other.claim_trainer()
        assert newer.incarnation == claim.incarnation
        with pytest.raises(TrainerSuperseded):
            await buffer.take_step(claim, 3)
        assert (await entry(other, newer, 1)).groups == first.groups


async def test_two_checkpoints_within_what_redis_lost_are_no_matter(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    rewinding.mark()
    claim = await buffer.claim_trainer()
    for step in (1, 2, 3):
        await play(buffer, 4)
        await entry(buffer, claim, step)
        await buffer.engine_serving("engine-0", WeightVersion(step))
        await buffer.checkpoints_kept(claim, step - 1)
    rewinding.rewind()
    assert await waits_for(buffer, claim, 4) == "not_enough_complete"
    # Only step 3 may have to be trained again; what the checkpoints cover is not played again.
    assert {s.lease.sample_id.group for s in await buffer.lease("p", 4)} == {4, 5}
    await buffer.checkpoints_kept(claim, 3)
    now = await buffer.snapshot()
    assert (now.admitted, now.trained, now.ledger_steps, now.journal_bytes) == (6, 6, 3, 0)


async def test_what_redis_lost_together_with_the_trainer_stands_in_its_checkpoint(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    claim = await buffer.claim_trainer()
    await play(buffer, 4)
    first = await entry(buffer, claim, 1)
    rewinding.mark()
    entries = [first]
    for step in (2, 3):
        await buffer.engine_serving("engine-0", WeightVersion(step - 1))
        await play(buffer, 4)
        entries.append(await entry(buffer, claim, step))
    checkpoint = buffer.ledger_tail()
    rewinding.rewind()
    async with await TrajectoryBuffer.connect(rewinding.url, "run") as other:
        claim = await other.claim_trainer(checkpoint, covered=2)
        assert claim.ledger_steps == 3
        # The oldest checkpoint covers step 2; step 3 may have to be trained again, and is played again.
        assert await waits_for(other, claim, 3) == "records_lost"
        assert {s.lease.sample_id.group for s in await buffer.lease("p", 4)} == set(entries[2].groups)
        now = await other.snapshot()
        assert (now.admitted, now.trained, now.ledger_steps) == (6, 6, 3)


async def test_a_checkpoint_with_a_gap_to_the_ledger_or_of_another_run_is_left_alone(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    later = orjson.dumps({"3": "{}"})
    assert (await buffer.claim_trainer(later)).ledger_steps == 0
    claim = await buffer.claim_trainer()
    await play(buffer, 4)
    await entry(buffer, claim, 1)
    assert (await buffer.claim_trainer(later)).ledger_steps == 1


async def test_a_ledger_that_nobody_remembers_is_named(
    buffer: TrajectoryBuffer, rewinding: RewindingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream_rl.buffer.trainer_calls.KNOWN_STEPS", 0)
    rewinding.mark()
    claim = await buffer.claim_trainer()
    for step in (1, 2):
        await play(buffer, 4)
        await entry(buffer, claim, step)
    await buffer.checkpoints_kept(claim, 1)
    rewinding.rewind()
    with pytest.raises(LedgerMismatch, match="does not know step 1 either"):
        await buffer.take_step(claim, 3)


async def test_a_redis_that_comes_back_empty_is_named(buffer: TrajectoryBuffer, rewinding: RewindingServer) -> None:
    claim = await buffer.claim_trainer()
    await buffer._connection.pipeline(lambda pipe: pipe.flushdb())
    with pytest.raises(LedgerMismatch, match="without the run"):
        await buffer.take_step(claim, 1)


async def test_a_journal_that_lost_its_tail_even_its_start_is_sent_again(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    (sample,) = await buffer.lease("p", 1)
    journal = BufferJournal(buffer, sample, "test")
    rewinding.mark()
    await journal.commit([START, turn(0)])
    await journal.commit([turn(1)])
    rewinding.rewind()
    await journal.commit([turn(2)], outcome(0.5))
    (ended,) = await buffer.outcomes(9)
    assert (ended.sample, ended.turns, ended.reward) == ("0-0", 3, 0.5)


async def test_an_end_that_redis_lost_is_played_again_from_the_last_commit(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    first, second = await buffer.lease("p", 2)
    await buffer.commit(first.lease, 0, [START, turn(0)])
    rewinding.mark()
    await buffer.commit(first.lease, 2, [turn(1)], outcome())
    await buffer.release([second.lease])
    rewinding.rewind()
    # The producer lives and beats: without a word from it Redis would believe for ever that it plays them.
    await buffer.heartbeat("p", 600)
    await buffer.lease("p", 1)
    again = {str(s.lease.sample_id): s for s in await buffer.lease("p", 2)}
    assert [turn.index for turn in again["0-0"].turns] == [0]
    assert "0-1" in again


async def test_a_lease_that_redis_lost_writes_nothing(buffer: TrajectoryBuffer, rewinding: RewindingServer) -> None:
    (old,) = await buffer.lease("p", 1)
    await buffer.commit(old.lease, 0, [START, turn(0)])
    await buffer.release([old.lease])
    rewinding.mark()
    (lost,) = await buffer.lease("p", 1)
    await buffer.commit(lost.lease, 2, [turn(1)])
    rewinding.rewind()
    with pytest.raises(LeaseLost):
        await buffer.commit(lost.lease, 3, [turn(2)])
    (again,) = await buffer.lease("p", 1)
    assert (again.lease.number, len(again.turns)) == (lost.lease.number, 1)
    with pytest.raises(LeaseLost):
        await buffer.commit(lost.lease, 2, [turn(2)])
    await buffer.commit(again.lease, 2, [turn(1)])


async def test_turns_of_a_restart_that_redis_lost_never_follow_the_old_ones(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    (sample,) = await buffer.lease("p", 1)
    await buffer.commit(sample.lease, 0, [START, turn(0)])
    rewinding.mark()
    renewed = await buffer.restart(sample.lease)
    await buffer.commit(renewed, 1, [turn(0)])
    rewinding.rewind()
    # Record 2 is what the old journal expects next as well; it would be the second half of another episode.
    with pytest.raises(LeaseLost):
        await buffer.commit(renewed, 2, [turn(1)])


async def test_producers_that_could_not_beat_while_redis_was_away_keep_their_samples(
    buffer: TrajectoryBuffer, rewinding: RewindingServer
) -> None:
    (sample,) = await buffer.lease("p", 1)
    # The outage outlasted the lease: its end by the server's clock is long past.
    key = buffer._connection.key("holders")
    await buffer._connection.pipeline(lambda pipe: pipe.zadd(key, {buffer._holder("p"): 1}))
    rewinding.mark()
    rewinding.rewind()
    async with await TrajectoryBuffer.connect(rewinding.url, "run") as other:
        await other.heartbeat("q", 600)
        assert [str(s.lease.sample_id) for s in await other.lease("q", 1)] == ["0-1"]
    await buffer.commit(sample.lease, 0, [START])
