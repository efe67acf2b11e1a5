"""Leases, commits, failures: the order of work, fencing, and what a repeated or late call does."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from journal_builders import RULES, START, finish, outcome, turn

from stream_rl.buffer import LeasedSample, Outcome, RunState, TrajectoryBuffer
from stream_rl.errors import JournalMismatch, LeaseLost
from stream_rl.sample import SampleId, Status, StopReason, WeightVersion


def names(samples: list[LeasedSample]) -> list[str]:
    return [str(sample.lease.sample_id) for sample in samples]


async def test_work_comes_oldest_first_and_ends_with_admission(buffer: TrajectoryBuffer) -> None:
    assert names(await buffer.lease("p", 3)) == ["0-0", "0-1", "1-0"]
    # K = 1 and B = 2: four groups may be live.
    assert names(await buffer.lease("p", 100)) == ["1-1", "2-0", "2-1", "3-0", "3-1"]
    assert await buffer.lease("p", 100) == []


async def test_resumed_samples_come_before_new_ones_with_their_journal(buffer: TrajectoryBuffer) -> None:
    first, second = await buffer.lease("p", 2)
    await buffer.commit(second.lease, 0, [START, turn(0), turn(1, complete=False)])
    await buffer.release([second.lease, first.lease])
    got = await buffer.lease("p", 3)
    assert names(got) == ["0-0", "0-1", "1-0"]
    resumed = got[1]
    assert resumed.lease.number == 2
    assert resumed.position == 3
    assert resumed.start is not None
    assert resumed.start.label == START.label
    assert [(t.index, t.complete, t.environment) for t in resumed.turns] == [
        (0, True, {"at": 0}), (1, False, {"at": 1})
    ]  # fmt: skip
    assert (got[0].start, got[0].turns) == (None, ())
    assert (await buffer.snapshot()).resumes == 1


async def test_a_silent_producer_loses_its_samples_but_no_turn(
    buffer: TrajectoryBuffer, other: TrajectoryBuffer
) -> None:
    (held,) = await buffer.lease("p", 1)
    await buffer.commit(held.lease, 0, [START, turn(0)])
    await buffer.heartbeat("p", 0)
    # Silent, but not yet noticed: it is still the newest lease.
    await buffer.commit(held.lease, 2, [turn(1)])
    (taken,) = await other.lease("q", 1)
    assert taken.lease.sample_id == held.lease.sample_id
    assert len(taken.turns) == 2
    with pytest.raises(LeaseLost, match="sample 0-0 is no longer leased to p"):
        await buffer.commit(held.lease, 3, [turn(2)])
    with pytest.raises(LeaseLost):
        await buffer.fail(held.lease, StopReason.ENV_FAILURE, "")
    with pytest.raises(LeaseLost):
        await buffer.restart(held.lease)
    await buffer.release([held.lease])
    await other.commit(taken.lease, 3, [turn(2)])
    assert (await other.snapshot()).refused_commits == 1


async def test_a_producer_started_again_under_its_name_is_another_holder(
    buffer: TrajectoryBuffer, other: TrajectoryBuffer
) -> None:
    await buffer.lease("p", 1)
    await other.heartbeat("p", 60)
    assert names(await other.lease("p", 1)) == ["0-1"]
    await buffer.heartbeat("p", 0)
    assert names(await other.lease("p", 1)) == ["0-0"]


async def test_the_lease_number_alone_does_not_write(buffer: TrajectoryBuffer) -> None:
    (held,) = await buffer.lease("p", 1)
    with pytest.raises(LeaseLost):
        await buffer.commit(replace(held.lease, nonce="0" * 24), 0, [START])
    with pytest.raises(LeaseLost):
        await buffer.commit(replace(held.lease, number=2), 0, [START])


async def test_two_clients_racing_never_share_a_sample(buffer: TrajectoryBuffer, other: TrajectoryBuffer) -> None:
    calls = [client.lease(name, 1) for client, name in ((buffer, "p"), (other, "q")) for _ in range(6)]
    got = [name for samples in await asyncio.gather(*calls) for name in names(samples)]
    assert len(got) == len(set(got)) == 8


async def test_nothing_is_leased_before_an_engine_serves(buffer: TrajectoryBuffer) -> None:
    await buffer.engine_left("engine-0")
    assert await buffer.lease("p", 1) == []
    await buffer.engine_joined("engine-1", "u", 2)
    assert await buffer.lease("p", 1) == []
    await buffer.engine_serving("engine-1", WeightVersion(0))
    assert names(await buffer.lease("p", 1)) == ["0-0"]


async def test_a_draining_run_leases_nothing(buffer: TrajectoryBuffer) -> None:
    assert await buffer.heartbeat("p", 60) is RunState.RUNNING
    await buffer.drain_run()
    assert await buffer.heartbeat("p", 60) is RunState.DRAINING
    assert await buffer.lease("p", 1) == []
    await buffer.open_run(RULES)
    assert names(await buffer.lease("p", 1)) == ["0-0"]


async def test_a_commit_names_its_place(buffer: TrajectoryBuffer) -> None:
    (held,) = await buffer.lease("p", 1)
    await buffer.commit(held.lease, 0, [START, turn(0)])
    with pytest.raises(JournalMismatch, match="commit at record 3, but the journal holds 2") as caught:
        await buffer.commit(held.lease, 3, [turn(1)])
    assert caught.value.expected == 2
    await buffer.commit(held.lease, 2, [turn(1)])
    # The same place with other content is not the same commit.
    with pytest.raises(JournalMismatch):
        await buffer.commit(held.lease, 2, [turn(7)])


async def test_a_journal_that_lost_its_tail_is_sent_again(buffer: TrajectoryBuffer) -> None:
    (held,) = await buffer.lease("p", 1)
    records = [START, turn(0), turn(1)]
    await buffer.commit(held.lease, 0, records[:1])
    with pytest.raises(JournalMismatch) as caught:
        await buffer.commit(held.lease, 2, records[2:])
    await buffer.commit(held.lease, caught.value.expected, records[caught.value.expected :])
    assert await buffer.journal_turns() == {"0-0": 2}


async def test_a_commit_sent_twice_changes_nothing(buffer: TrajectoryBuffer) -> None:
    (held,) = await buffer.lease("p", 1)
    for _ in range(2):
        await buffer.commit(held.lease, 0, [START, turn(0)])
    before = await buffer.snapshot()
    for _ in range(2):
        await buffer.commit(held.lease, 2, [turn(1)], outcome())
    after = await buffer.snapshot()
    assert (before.committed_turns, after.committed_turns, after.outcomes, after.leased) == (1, 2, 1, 0)
    with pytest.raises(LeaseLost):
        await buffer.commit(held.lease, 3, [turn(2)])


async def test_an_outcome_may_come_without_records(buffer: TrajectoryBuffer) -> None:
    (held,) = await buffer.lease("p", 1)
    await buffer.commit(held.lease, 0, [START, turn(0)])
    for _ in range(2):
        await buffer.commit(held.lease, 2, [], outcome())
    assert [(o.sample, o.turns) for o in await buffer.outcomes(9)] == [("0-0", 1)]


async def test_a_journal_begins_with_its_start(buffer: TrajectoryBuffer) -> None:
    (held,) = await buffer.lease("p", 1)
    with pytest.raises(ValueError, match="record 0 of a journal cannot be a Turn"):
        await buffer.commit(held.lease, 0, [turn(0)])
    with pytest.raises(ValueError, match="record 1 of a journal cannot be a SampleStart"):
        await buffer.commit(held.lease, 0, [START, START])


def test_only_a_finished_episode_has_an_outcome() -> None:
    with pytest.raises(ValueError, match="not failed"):
        Outcome(Status.FAILED, StopReason.ENV_FAILURE, 0.0)
    with pytest.raises(ValueError, match="finite"):
        Outcome(Status.COMPLETED, StopReason.ENV_DONE, float("nan"))


async def test_restart_keeps_the_start_and_leaves_a_record(buffer: TrajectoryBuffer) -> None:
    (held,) = await buffer.lease("p", 1)
    await buffer.commit(held.lease, 0, [START, turn(0), turn(1)])
    renewed = await buffer.restart(held.lease)
    with pytest.raises(LeaseLost):
        await buffer.commit(held.lease, 1, [turn(0)])
    assert await buffer.journal_turns() == {"0-0": 0}
    await buffer.commit(renewed, 1, [turn(0)])
    assert [(o.kind, o.turns, o.generated, o.response_length) for o in await buffer.outcomes(9)] == [
        ("restarted", 2, 6, 10)
    ]


async def test_a_failure_refills_only_the_missing_sibling(buffer: TrajectoryBuffer) -> None:
    first, second = await buffer.lease("p", 2)
    await finish(buffer, second)
    await buffer.engine_serving("engine-0", WeightVersion(1))
    for _ in range(2):
        await buffer.fail(first.lease, StopReason.ENV_FAILURE, "the world broke")
    (again,) = await buffer.lease("p", 1)
    assert again.lease.sample_id == SampleId(0, 0, attempt=1)
    assert (again.v0, again.prompt_index, again.position) == (0, 0, 0)
    snapshot = await buffer.snapshot()
    assert (snapshot.refills, snapshot.dead_lettered, snapshot.complete) == (1, 0, 0)
    await finish(buffer, again)
    assert (await buffer.snapshot()).complete == 1


async def test_spent_refills_give_up_the_whole_group(buffer: TrajectoryBuffer, other: TrajectoryBuffer) -> None:
    await buffer.open_run(replace(RULES, group_size=2, max_refills_per_group=1))
    first, second = await buffer.lease("p", 2)
    await finish(buffer, second)
    await buffer.fail(first.lease, StopReason.ENV_FAILURE, "once")
    (first,) = await buffer.lease("p", 1)
    await buffer.commit(first.lease, 0, [START, turn(0)])
    for _ in range(2):
        await buffer.fail(first.lease, StopReason.ENGINE_FAILURE, "twice")
    (letter,) = await buffer.dead_letters()
    assert (letter.group, letter.stop_reason, letter.detail, letter.finished) == (
        0,
        "engine_failure",
        "twice",
        ("0-1",),
    )
    snapshot = await buffer.snapshot()
    assert (snapshot.dead_lettered, snapshot.live, snapshot.admitted) == (1, 0, 1)
    assert [(o.kind, o.turns) for o in await buffer.outcomes(9)] == [("finished", 2), ("failed", 0), ("failed", 1)]


@pytest.mark.parametrize("sibling", ["leased", "returned", "queued"])
async def test_a_dead_groups_siblings_go_with_it(buffer: TrajectoryBuffer, sibling: str) -> None:
    await buffer.open_run(replace(RULES, max_refills_per_group=0))
    samples = await buffer.lease("p", 1 if sibling == "queued" else 2)
    if sibling != "queued":
        await buffer.commit(samples[1].lease, 0, [START, turn(0)])
    if sibling == "returned":
        await buffer.release([samples[1].lease])
    await buffer.fail(samples[0].lease, StopReason.ENV_FAILURE, "")
    assert names(await buffer.lease("p", 1)) == ["1-0"]
    snapshot = await buffer.snapshot()
    assert (snapshot.pending, snapshot.resumable, snapshot.leased, snapshot.dead_lettered) == (1, 0, 1, 1)
    if sibling == "leased":
        with pytest.raises(LeaseLost):
            await buffer.commit(samples[1].lease, 2, [turn(1)])
    dropped = [(o.sample, o.status, o.turns) for o in await buffer.outcomes(9)][1:]
    assert dropped == ([] if sibling == "queued" else [("0-1", "aborted", 1)])


@pytest.mark.parametrize(("rewards", "filtered"), [((0.5, 0.5), 1), ((0.5, 0.0), 0)])
async def test_zero_variance_groups_leave_when_they_complete(
    buffer: TrajectoryBuffer, rewards: tuple[float, float], filtered: int
) -> None:
    await buffer.open_run(replace(RULES, filter_zero_variance=True))
    samples = await buffer.lease("p", 2)
    for sample, reward in zip(samples, rewards, strict=True):
        await finish(buffer, sample, reward)
    # The last commit again: its records are gone, but not the memory of it.
    await buffer.commit(samples[1].lease, 2, [turn(1)], outcome(rewards[1]))
    snapshot = await buffer.snapshot()
    assert (snapshot.filtered, snapshot.complete, snapshot.live) == (filtered, 1 - filtered, 1 - filtered)
    assert snapshot.outcomes == 2
