"""Steps are taken once, given again as recorded, fenced, and retired only when told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from journal_builders import RULES, START, finish, outcome, turn

from stream_rl.buffer import LeasedSample, TrajectoryBuffer, Waiting, codec
from stream_rl.errors import CorruptRecord, LedgerMismatch, NoTrainableBatch, RecordsLost, TrainerSuperseded
from stream_rl.sample import LedgerEntry, Status, StopReason, WeightVersion


async def lease_and_finish(buffer: TrajectoryBuffer, count: int) -> list[LeasedSample]:
    samples = await buffer.lease("p", count)
    for sample in samples:
        await finish(buffer, sample, reward=0.1 * sample.lease.sample_id.index)
    return samples


async def test_a_step_is_recorded_in_the_call_that_takes_it(buffer: TrajectoryBuffer) -> None:
    claim = await buffer.claim_trainer()
    assert (claim.incarnation, claim.ledger_steps) == (0, 0)
    await lease_and_finish(buffer, 6)
    entry = await buffer.take_step(claim, 1)
    assert entry == LedgerEntry(1, (0, 1), RULES.max_staleness, RULES.max_lag)
    await buffer.open_run(replace(RULES, max_staleness=0, max_lag=9))
    # The recorded knobs, not today's.
    assert await buffer.take_step(claim, 1) == entry
    snapshot = await buffer.snapshot()
    assert (snapshot.trained, snapshot.ledger_steps, snapshot.complete, snapshot.live) == (2, 1, 1, 1)


async def test_waiting_says_why(buffer: TrajectoryBuffer) -> None:
    claim = await buffer.claim_trainer()
    await lease_and_finish(buffer, 3)
    await buffer.engine_joined("engine-1", "u", 2)
    assert await buffer.take_step(claim, 1) == Waiting("not_enough_complete", live=2, complete=1, engines_joining=1)


async def test_a_group_that_is_due_holds_the_step(buffer: TrajectoryBuffer) -> None:
    await buffer.open_run(replace(RULES, run_ahead=1, max_lag=1, max_staleness=1))
    claim = await buffer.claim_trainer()
    slow = await buffer.lease("p", 6)
    for sample in slow[2:]:
        await finish(buffer, sample)
    assert isinstance(await buffer.take_step(claim, 1), LedgerEntry)
    await lease_and_finish(buffer, 2)
    await buffer.engine_serving("engine-0", WeightVersion(1))
    await lease_and_finish(buffer, 2)
    waiting = await buffer.take_step(claim, 2)
    assert waiting == Waiting("lag_rule", live=3, complete=2, engines_joining=0)
    for sample in slow[:2]:
        await finish(buffer, sample)
    taken = await buffer.take_step(claim, 2)
    assert isinstance(taken, LedgerEntry)
    assert taken.groups == (0, 3)


async def test_an_older_trainer_is_refused(buffer: TrajectoryBuffer, other: TrajectoryBuffer) -> None:
    old = await buffer.claim_trainer()
    await lease_and_finish(buffer, 4)
    await buffer.take_step(old, 1)
    new = await other.claim_trainer()
    assert (new.incarnation, new.ledger_steps) == (1, 1)
    for call in (buffer.take_step(old, 1), buffer.take_step(old, 2), buffer.checkpoints_kept(old, 1)):
        with pytest.raises(TrainerSuperseded, match="incarnation 0 was superseded by 1"):
            await call
    replayed = await other.take_step(new, 1)
    assert isinstance(replayed, LedgerEntry)
    assert replayed.groups == (0, 1)


async def test_only_what_no_checkpoint_needs_is_retired(buffer: TrajectoryBuffer) -> None:
    claim = await buffer.claim_trainer()
    for step in (1, 2, 3):
        await lease_and_finish(buffer, 4)
        await buffer.engine_serving("engine-0", WeightVersion(step - 1))
        assert isinstance(await buffer.take_step(claim, step), LedgerEntry)
    for _ in range(2):
        await buffer.checkpoints_kept(claim, 2)
    with pytest.raises(LedgerMismatch, match="step 2 was retired"):
        await buffer.take_step(claim, 2)
    with pytest.raises(LedgerMismatch, match="the ledger ends at step 3"):
        await buffer.take_step(claim, 5)
    with pytest.raises(RecordsLost, match="group 0 is not in the buffer"):
        await buffer.load_groups([0])
    entry = await buffer.take_step(claim, 3)
    assert isinstance(entry, LedgerEntry)
    assert [group.index for group in await buffer.load_groups(entry.groups)] == list(entry.groups)
    journals = await buffer._connection.pipeline(lambda pipe: pipe.keys(buffer._connection.prefix + "journal:*"))
    retired = {f"{group}-{index}" for group in range(4) for index in range(2)}
    left = {key.decode().rpartition(":")[2] for key in journals[0]}
    assert left
    assert not left & retired


async def test_samples_come_back_whole(buffer: TrajectoryBuffer) -> None:
    (sample, _) = await lease_and_finish(buffer, 2)
    (group,) = await buffer.load_groups([0])
    assert (group.index, group.v0, group.prompt_index, len(group.samples)) == (0, 0, 0, 2)
    loaded = group.samples[0]
    assert loaded.sample_id == sample.lease.sample_id
    assert (loaded.prompt, loaded.label, loaded.metadata) == (START.prompt, START.label, START.metadata)
    assert (loaded.temperature, loaded.sampling_seed) == (0.7, 11)
    assert (loaded.reward, loaded.status, loaded.stop_reason) == (0.0, Status.COMPLETED, StopReason.ENV_DONE)
    assert loaded.tokens.tolist() == [5, 6, 7, 100, 100, 100, 9, 9, 101, 101, 101, 9, 9]
    assert loaded.loss_mask.tolist() == [1, 1, 1, 0, 0] * 2
    assert loaded.version_steps.tolist() == [0, 0, 0, -1, -1] * 2
    assert loaded.rollout_log_probs.dtype == np.float32
    assert group.samples[1].reward == 0.1


async def test_a_large_group_is_read_in_pieces(buffer: TrajectoryBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream_rl.buffer.journals.CHUNK_BYTES", 20_000)
    for sample in await buffer.lease("p", 2):
        await buffer.commit(sample.lease, 0, [START])
        for index in range(30):
            await buffer.commit(sample.lease, index + 1, [turn(index, 200)])
        await buffer.commit(sample.lease, 31, [], outcome())
    (group,) = await buffer.load_groups([0])
    assert [turn.index for turn in group.samples[0].turns] == list(range(30))
    assert group.samples[1].response_length == 30 * 202


async def test_a_damaged_record_is_named(buffer: TrajectoryBuffer) -> None:
    await lease_and_finish(buffer, 2)
    key = buffer._connection.key("journal", "0-1")
    await buffer._connection.pipeline(lambda pipe: pipe.lset(key, 1, b"SRLBnonsense"))
    with pytest.raises(CorruptRecord):
        await buffer.load_groups([0])


async def test_many_groups_without_a_batch_end_the_run(buffer: TrajectoryBuffer) -> None:
    await buffer.open_run(replace(RULES, filter_zero_variance=True, max_untrainable_completions=2))
    claim = await buffer.claim_trainer()
    for sample in await buffer.lease("p", 2):
        await finish(buffer, sample)
    assert isinstance(await buffer.take_step(claim, 1), Waiting)
    for sample in await buffer.lease("p", 2):
        await finish(buffer, sample)
    with pytest.raises(NoTrainableBatch, match=r"2 groups in a row .* scheduling\.max_untrainable_completions"):
        await buffer.take_step(claim, 1)


async def test_a_run_ends_with_every_group_used(buffer: TrajectoryBuffer) -> None:
    await buffer.open_run(replace(RULES, total_groups=4, max_refills_per_group=0))
    claim = await buffer.claim_trainer()
    first, *rest = await buffer.lease("p", 100)
    await buffer.fail(first.lease, StopReason.ENV_FAILURE, "")
    for sample in rest[1:]:
        await finish(buffer, sample)
    assert await lease_and_finish(buffer, 100)
    assert await buffer.lease("p", 100) == []
    for step in (1, 2):
        assert isinstance(await buffer.take_step(claim, step), LedgerEntry)
        await buffer.engine_serving("engine-0", WeightVersion(step))
    assert await buffer.lease("p", 100) == []
    snapshot = await buffer.snapshot()
    assert (snapshot.admitted, snapshot.trained, snapshot.dead_lettered, snapshot.live) == (5, 4, 1, 0)
    await buffer.finish_run()
    assert await buffer.heartbeat("p", 1) == "finished"


async def test_group_bytes_are_what_the_journals_hold(buffer: TrajectoryBuffer) -> None:
    samples = await buffer.lease("p", 4)
    for sample in samples:
        await finish(buffer, sample)
    groups = sorted({sample.lease.sample_id.group for sample in samples})
    sizes = await buffer.group_bytes(groups[::-1])
    records = [START, turn(0), turn(1)]
    assert sizes == [2 * sum(len(codec.encode(record)) for record in records)] * 2
    with pytest.raises(RecordsLost, match="group 99"):
        await buffer.group_bytes([99])


async def test_groups_are_ready_in_the_order_in_which_steps_take_them(buffer: TrajectoryBuffer) -> None:
    for sample in reversed(await buffer.lease("p", 8)):
        await finish(buffer, sample)
    assert await buffer.ready_groups(9) == [0, 1, 2, 3]
    assert await buffer.ready_groups(2) == [0, 1]


async def test_what_was_read_ahead_is_loaded_unless_it_was_written_anew(
    buffer: TrajectoryBuffer,
) -> None:
    await lease_and_finish(buffer, 4)
    ahead = await buffer.read_ahead([0, 1])
    assert list(ahead) == ["0-0", "0-1", "1-0", "1-1"]
    rewritten = buffer._connection.key("sample", "1-0")
    await buffer._connection.pipeline(lambda pipe: pipe.hset(rewritten, "nonce", "another"))
    groups = await buffer.load_groups([1, 0], ahead)
    assert [group.index for group in groups] == [1, 0]
    kept = [sample is ahead[str(sample.sample_id)].sample for group in groups for sample in group.samples]
    assert kept == [False, True, True, True]
    (group,) = await buffer.load_groups([0])
    assert group.samples[0].tokens.tolist() == ahead["0-0"].sample.tokens.tolist()
