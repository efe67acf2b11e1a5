"""What operators ask: what is held, dead letters taken in again once, one run removed, and what the server says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from journal_builders import START, begin, finish, turn

from stream_rl.buffer import EmbeddedServer, RunRules, TrajectoryBuffer
from stream_rl.errors import ConfigError, CorruptRecord
from stream_rl.sample import Status, StopReason

NO_REFILLS = RunRules(groups_per_step=2, group_size=2, max_refills_per_group=0, total_groups=4)


@pytest.fixture
async def given_up(buffer: TrajectoryBuffer) -> TrajectoryBuffer:
    """A run of 4 groups in all, of which group 0 is a dead letter and 1 is played."""
    await buffer.open_run(NO_REFILLS)
    first, *_ = await buffer.lease("p", 2)
    await buffer.fail(first.lease, StopReason.ENV_FAILURE, "the world is gone")
    for sample in await buffer.lease("p", 2):
        await finish(buffer, sample, float(sample.lease.sample_id.index))
    return buffer


async def accounts(buffer: TrajectoryBuffer) -> tuple[int, int, int]:
    """Admitted, dead-lettered, live; checked to add up (I7)."""
    now = await buffer.snapshot()
    assert now.admitted == now.trained + now.filtered + now.dead_lettered + now.live
    return now.admitted, now.dead_lettered, now.live


async def test_everything_held_is_found_by_its_state(buffer: TrajectoryBuffer) -> None:
    for sample in await buffer.lease("p", 4):
        await finish(buffer, sample, 0.5)
    claim = await buffer.claim_trainer()
    await buffer.take_step(claim, 1)
    begun, untouched = await buffer.lease("p", 2)
    await buffer.commit(begun.lease, 0, [START, turn(0), turn(1, complete=False)])
    groups = [group async for group in buffer.held(await buffer.held_groups())]
    assert [(group.number, group.state, group.step) for group in groups] == [
        (0, "trained", 1), (1, "trained", 1), (2, "live", None)
    ]  # fmt: skip
    trained, open_, fresh = groups[0].samples[0], *groups[2].samples
    assert (trained.state, trained.status, trained.reward, trained.turns) == ("finished", Status.COMPLETED, 0.5, 2)
    assert (open_.state, open_.status, open_.turns, open_.records, open_.producer) == (
        "leased", Status.PENDING, 1, 3, "p"
    )  # fmt: skip
    assert fresh.sample_id == untouched.lease.sample_id
    part = await buffer.trajectory(open_)
    assert part is not None
    assert [t.complete for t in part.turns] == [True, False]
    assert part.response_length == open_.response_length == len(part.loss_mask)
    assert await buffer.trajectory(fresh) is None

    await buffer.checkpoints_kept(claim, 1)
    assert list(await buffer.held_groups()) == [2]
    assert [group async for group in buffer.held({0: 1})] == []
    assert await buffer.trajectory(trained) is None


async def test_a_record_that_went_while_it_was_read_is_no_damage(
    buffer: TrajectoryBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sample in await buffer.lease("p", 4):
        await finish(buffer, sample)
    (group, _) = [group async for group in buffer.held(await buffer.held_groups())]

    async def torn(*_: object) -> None:
        raise CorruptRecord("half of it is gone")

    monkeypatch.setattr("stream_rl.buffer.operator_calls.read_journals", torn)
    with pytest.raises(CorruptRecord):
        await buffer.trajectory(group.samples[0])
    claim = await buffer.claim_trainer()
    await buffer.take_step(claim, 1)
    await buffer.checkpoints_kept(claim, 1)
    assert await buffer.trajectory(group.samples[0]) is None


async def test_a_requeued_prompt_comes_before_new_ones_and_skips_none(given_up: TrajectoryBuffer) -> None:
    assert (await given_up.requeue(0)).first
    assert await accounts(given_up) == (2, 1, 1)
    leased = await given_up.lease("p", 6)
    assert [(s.lease.sample_id.group, s.prompt_index) for s in leased] == [(2, 0)] * 2 + [(3, 2)] * 2 + [(4, 3)] * 2
    assert await accounts(given_up) == (5, 1, 4)
    assert (await given_up.requeued([0]))[0].group == 2
    for sample in leased:
        await finish(given_up, sample, float(sample.lease.sample_id.index))
    assert await given_up.lease("p", 2) == []  # 4 usable groups: the run's end does not move
    claim = await given_up.claim_trainer()
    assert [(await given_up.take_step(claim, step)).groups for step in (1, 2)] == [(1, 2), (3, 4)]  # type: ignore[union-attr]


async def test_a_dead_letter_is_requeued_once_whoever_asks_and_however_often(given_up: TrajectoryBuffer) -> None:
    script = given_up._connection.script
    assert [await script("requeue", 0, "n") for _ in range(3)] == [[b"ok"]] * 3  # a reply was lost: asked again
    answers = await asyncio.gather(*(given_up.requeue(0) for _ in range(8)))
    assert not any(answer.first for answer in answers)
    await given_up.lease("p", 6)
    assert await given_up.requeue(0) == await given_up.requeue(0)
    assert (await given_up.requeue(0)).group == 2
    assert await accounts(given_up) == (5, 1, 4)
    with pytest.raises(ConfigError, match="group 1 is no dead letter of this run"):
        await given_up.requeue(1)


async def test_a_requeued_group_may_be_given_up_and_requeued_itself(given_up: TrajectoryBuffer) -> None:
    await given_up.requeue(0)
    (sample,) = await given_up.lease("p", 1)
    await given_up.fail(sample.lease, StopReason.ENV_FAILURE, "again")
    await given_up.requeue(2)
    (sample, *_) = await given_up.lease("p", 1)
    assert (sample.lease.sample_id.group, sample.prompt_index) == (3, 0)
    assert await accounts(given_up) == (4, 2, 2)


@pytest.mark.parametrize("name", ["a*b", "a[bc]d", "a?c", "a\\b", "a^b", "plain"])
async def test_purge_takes_one_runs_keys_and_no_others(server: EmbeddedServer, name: str) -> None:
    neighbours = ["axb", "abd", "abc", "a", "ab", "plain2", "plai", name + ":x", f"x{name}"]
    buffers = [await TrajectoryBuffer.connect(server.url, run) for run in [name, *neighbours]]
    for buffer in buffers:
        await begin(buffer)
        for sample in await buffer.lease("p", 4):
            await finish(buffer, sample)
    assert [life.split(":")[0] for life in await buffers[0].live_producers()] == ["p"]
    counts = [gone async for gone in buffers[0].purge()]
    assert counts[-1] > 15
    assert not await buffers[0].was_opened()
    assert [gone async for gone in buffers[0].purge()] == []
    for buffer in buffers[1:]:
        assert (await buffer.snapshot()).live == 2
        assert len(await buffer.load_groups([0, 1])) == 2
    for buffer in buffers:
        assert [gone async for gone in buffer.purge()] or buffer is buffers[0]
        await buffer.close()


async def test_a_silent_producer_is_not_live(buffer: TrajectoryBuffer) -> None:
    await buffer.heartbeat("p", 0.0)
    assert await buffer.live_producers() == []


async def test_a_run_keeps_what_its_prompts_rest_on(buffer: TrajectoryBuffer) -> None:
    await buffer.check_prompts({"seed": 9})
    await buffer.settle_prompts({"seed": 3, "data.path": {"rows": 5}})
    await buffer.settle_prompts({"seed": 3, "data.path": {"rows": 5}})
    with pytest.raises(ConfigError, match="seed: this run was begun with 3, not 4: set it back"):
        await buffer.settle_prompts({"seed": 4, "data.path": {"rows": 5}})
    with pytest.raises(ConfigError, match=r"data\.path: this run was begun with .*5.*, not .*6"):
        await buffer.check_prompts({"seed": 3, "data.path": {"rows": 6}})


@pytest.mark.parametrize("options", ["--user default on nopass ~* +@all -config", "--rename-command CONFIG hidden"])
async def test_a_servers_facts_without_the_right_to_its_settings(
    plain_valkey: Callable[..., str], options: str
) -> None:
    async with await TrajectoryBuffer.connect(plain_valkey(*options.split()), "run") as buffer:
        facts = await buffer.server_facts()
    assert facts["aof_enabled"] == "0"
    assert "appendfsync" not in facts
