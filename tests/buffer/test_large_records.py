"""Records too large for Lua stand beside the journal under the same fence; compressed ones read like any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from journal_builders import RULES, START, outcome, turn

from stream_rl.buffer import EmbeddedServer, TrajectoryBuffer, codec
from stream_rl.buffer.producer_calls import BESIDE_BYTES, LEASES_PER_CALL
from stream_rl.errors import JournalMismatch, LeaseLost, RecordsLost
from stream_rl.sample import LedgerEntry

LARGE = turn(0, BESIDE_BYTES // 8)
STARTED = replace(START, metadata={"text": "x" * BESIDE_BYTES})


async def blobs(buffer: TrajectoryBuffer, *, staged: bool) -> list[str]:
    """Sample and position of every blob that expires (`staged`), or that a journal keeps."""
    prefix = buffer._connection.key("blob", "x")[:-1]
    (keys,) = await buffer._connection.pipeline(lambda pipe: pipe.keys(f"{prefix}*"))
    lives = await buffer._connection.pipeline(lambda pipe: [pipe.ttl(key) for key in keys]) if keys else []
    names = [key.decode().removeprefix(prefix).split(":") for key in keys]
    return sorted(f"{name[0]}:{name[2]}" for name, life in zip(names, lives, strict=True) if (life != -1) == staged)


async def test_a_large_record_is_stored_once_and_comes_back(buffer: TrajectoryBuffer) -> None:
    held, sibling = await buffer.lease("p", 2)
    for _ in range(2):
        await buffer.commit(held.lease, 0, [START, LARGE])
    other = replace(LARGE, generated=LARGE.generated + 1)
    for position, record in ((3, LARGE), (1, replace(LARGE, action="another")), (1, other)):
        with pytest.raises(JournalMismatch):
            await buffer.commit(held.lease, position, [record])
    await buffer.commit(held.lease, 2, [turn(1)], outcome())
    await buffer.commit(sibling.lease, 0, [STARTED, turn(0)], outcome())
    assert await blobs(buffer, staged=False) == ["0-0:1", "0-1:0"]
    assert await blobs(buffer, staged=True) == ["0-0:1", "0-0:1", "0-0:3"]
    (group,) = await buffer.load_groups([0])
    assert group.samples[0].turns[0].generated.tolist() == LARGE.generated.tolist()
    assert group.samples[1].metadata == STARTED.metadata


async def test_a_zombies_blob_is_linked_by_nothing_and_expires(buffer: TrajectoryBuffer) -> None:
    (held,) = await buffer.lease("p", 1)
    await buffer.release([held.lease])
    with pytest.raises(LeaseLost):
        await buffer.commit(held.lease, 0, [START, LARGE])
    assert await blobs(buffer, staged=False) == []
    assert await blobs(buffer, staged=True) == ["0-0:1"]
    (again,) = await buffer.lease("p", 1)
    assert again.position == 0


async def test_blobs_go_with_their_journal(buffer: TrajectoryBuffer) -> None:
    claim = await buffer.claim_trainer()
    first, *others = await buffer.lease("p", 4)
    await buffer.commit(first.lease, 0, [STARTED, LARGE])
    renewed = await buffer.restart(first.lease)
    assert await blobs(buffer, staged=False) == ["0-0:0"]
    size = (await buffer.group_bytes([0]))[0]
    assert size == (await buffer.snapshot()).journal_bytes > BESIDE_BYTES
    await buffer.release([renewed])
    (first,) = await buffer.lease("p", 1)
    assert (first.start is not None, first.turns) == (True, ())
    await buffer.commit(first.lease, 1, [LARGE], outcome())
    for sample in others:
        await buffer.commit(sample.lease, 0, [START, LARGE], outcome())
    assert isinstance(await buffer.take_step(claim, 1), LedgerEntry)
    assert len(await blobs(buffer, staged=False)) == 5
    await buffer.checkpoints_kept(claim, 1)
    assert await blobs(buffer, staged=False) == []


async def test_a_blob_that_is_gone_is_named(buffer: TrajectoryBuffer) -> None:
    held, sibling = await buffer.lease("p", 2)
    await buffer.commit(held.lease, 0, [START, LARGE], outcome())
    await buffer.commit(sibling.lease, 0, [START, turn(0)], outcome())
    key = buffer._connection.key("blob", f"0-0:{held.lease.nonce}:1:{codec.fingerprint(codec.pieces(LARGE)):08x}")
    await buffer._connection.pipeline(lambda pipe: pipe.delete(key))
    with pytest.raises(RecordsLost, match=r"the journal of sample 0-0 names 0-0:.*, which is not there"):
        await buffer.load_groups([0])


async def test_compressed_records_take_fewer_bytes_and_any_client_reads_them(
    server: EmbeddedServer, run_name: str, buffer: TrajectoryBuffer
) -> None:
    async with await TrajectoryBuffer.connect(server.url, run_name, compression="zstd") as packing:
        await packing.heartbeat("q", 60)
        one, two = await packing.lease("q", 2)
        await packing.commit(one.lease, 0, [START, LARGE], outcome())
        small = (await packing.snapshot()).journal_bytes
        await packing.commit(two.lease, 0, [START, turn(0, 9)], outcome())
    (group,) = await buffer.load_groups([0])
    assert group.samples[0].turns[0].generated.tolist() == LARGE.generated.tolist()
    assert small < BESIDE_BYTES // 8


async def test_a_rank_reads_only_the_bytes_of_its_groups(buffer: TrajectoryBuffer) -> None:
    async def sent() -> int:
        (facts,) = await buffer._connection.pipeline(lambda pipe: pipe.info("stats"))
        return int(facts["total_net_output_bytes"])

    claim = await buffer.claim_trainer()
    for length, sample in enumerate(await buffer.lease("p", 4), start=1):
        await buffer.commit(sample.lease, 0, [START, turn(0, 20_000 * length)], outcome())
    entry = await buffer.take_step(claim, 1)
    assert isinstance(entry, LedgerEntry)
    sizes, before = await buffer.group_bytes(entry.groups), await sent()
    assert sizes[1] > 2 * sizes[0]
    await buffer.load_groups(entry.groups[:1])
    assert await sent() - before < 1.05 * sizes[0]


async def test_work_for_a_thousand_samples_comes_in_calls_of_bounded_size(
    buffer: TrajectoryBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await buffer.open_run(replace(RULES, groups_per_step=300))
    counts = []
    script = buffer._connection.script

    async def counted(name: str, *arguments: str | int | float | bytes, **options: bool) -> object:
        counts.append(arguments[2])
        return await script(name, *arguments, **options)

    monkeypatch.setattr(buffer._connection, "script", counted)
    samples = await buffer.lease("p", 1000)
    assert len({str(sample.lease.sample_id) for sample in samples}) == 1000
    assert max(counts) == LEASES_PER_CALL
    assert (await buffer._connection.pipeline(lambda pipe: pipe.ping())) == [True]
