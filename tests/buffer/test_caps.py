"""Caps keep new work back, by the name of their setting; what is admitted goes on, and nothing is dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from journal_builders import RULES, START, finish, turn

from stream_rl.buffer import RunRules, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.errors import ConfigError
from stream_rl.sample import LedgerEntry, StopReason


async def test_no_more_samples_are_leased_than_all_producers_may_hold(
    buffer: TrajectoryBuffer, other: TrajectoryBuffer
) -> None:
    await buffer.open_run(replace(RULES, max_leased_samples=3))
    held = await buffer.lease("p", 2)
    assert buffer.waits_for == ""
    assert len(await other.lease("q", 2)) == 1
    assert await buffer.lease("p", 2) == []
    assert buffer.waits_for == other.waits_for == "buffer.max_leased_samples"
    await finish(buffer, held[0])
    assert len(await other.lease("q", 2)) == 1


async def test_ready_groups_keep_admission_waiting_until_they_are_trained(buffer: TrajectoryBuffer) -> None:
    await buffer.open_run(replace(RULES, max_ready_groups=2))
    claim = await buffer.claim_trainer()
    for sample in await buffer.lease("p", 4):
        await finish(buffer, sample)
    assert await buffer.lease("p", 1) == []
    assert buffer.waits_for == "buffer.max_ready_groups"
    assert isinstance(await buffer.take_step(claim, 1), LedgerEntry)
    assert len(await buffer.lease("p", 1)) == 1
    assert buffer.waits_for == ""


async def test_bytes_keep_admission_waiting_and_let_admitted_groups_finish(buffer: TrajectoryBuffer) -> None:
    await buffer.open_run(replace(RULES, max_journal_bytes=4000))
    claim = await buffer.claim_trainer()
    samples = await buffer.lease("p", 4)
    await buffer.commit(samples[0].lease, 0, [START, turn(0, 600)])
    assert await buffer.lease("p", 1) == []
    assert buffer.waits_for == "buffer.max_journal_mib"
    await buffer.release([samples[1].lease])
    (again,) = await buffer.lease("p", 1)
    await buffer.commit(samples[0].lease, 2, [turn(1)], outcome=None)
    await buffer.fail(samples[0].lease, StopReason.ENV_FAILURE, "")
    for sample in (again, *samples[2:], *await buffer.lease("p", 1)):
        await finish(buffer, sample)
    assert isinstance(await buffer.take_step(claim, 1), LedgerEntry)
    assert 0 < (await buffer.snapshot()).journal_bytes < 4000


async def test_journal_bytes_are_exact_through_every_end(buffer: TrajectoryBuffer) -> None:
    claim = await buffer.claim_trainer()
    first, second, third, fourth = await buffer.lease("p", 4)
    for sample in (first, second, third):
        await finish(buffer, sample)
    start = (await buffer.group_bytes([0]))[0]
    await buffer.commit(fourth.lease, 0, [START, turn(0, 20_000)])
    renewed = await buffer.restart(fourth.lease)
    await buffer.commit(renewed, 1, [turn(0), turn(1)])
    await buffer.fail(renewed, StopReason.ENV_FAILURE, "")
    assert (await buffer.snapshot()).journal_bytes == start * 3 // 2
    (fourth,) = await buffer.lease("p", 1)
    await finish(buffer, fourth)
    assert (await buffer.snapshot()).journal_bytes == 2 * start
    await buffer.take_step(claim, 1)
    await buffer.checkpoints_kept(claim, 1)
    assert (await buffer.snapshot()).journal_bytes == 0


def test_the_caps_are_the_settings() -> None:
    tree = {"run": "runs/x", "model": {"path": "m"}, "environment": {"path": "e"}}
    rules = RunRules.of(Config.parse({**tree, "buffer": {"max_journal_mib": 3, "max_leased_samples": 7}}))
    assert (rules.max_journal_bytes, rules.max_leased_samples, rules.max_ready_groups) == (3 * 2**20, 7, 2**53)
    with pytest.raises(ConfigError, match=r"buffer\.max_ready_groups=31 is less than rollout\.groups_per_step=32"):
        Config.parse({**tree, "buffer": {"max_ready_groups": 31}})
