"""Settings changed while a run is live: what is refused, what lands, what is written down, what a resume keeps."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from journal_builders import RULES, entry, finish, play, waits_for

from stream_rl.buffer import EmbeddedServer, RunState, TrajectoryBuffer
from stream_rl.errors import BufferUnavailable, ConfigError
from stream_rl.sample import WeightVersion

ASKED = replace(RULES, concurrency=8)


def plain(changes: list) -> list[tuple]:
    return [(c.number, c.setting, c.old, c.new, c.by) for c in changes]


async def test_a_change_is_in_force_and_in_the_list(buffer: TrajectoryBuffer, other: TrajectoryBuffer) -> None:
    changes = await other.set_live({"max_staleness": 3, "scheduling.max_lag": 8, "concurrency": 5})
    assert plain(changes) == [
        (1, "scheduling.max_staleness", 2, 3, "set"), (2, "scheduling.max_lag", 3, 8, "set"),
        (3, "producer.concurrency", 0, 5, "set"),
    ]  # fmt: skip
    assert await buffer.setting_changes() == changes
    rules = (await buffer.snapshot()).rules
    assert rules == replace(RULES, max_staleness=3, max_lag=8, concurrency=5)
    assert await buffer.set_live({"max_lag": 8}) == []
    assert len(await buffer.setting_changes()) == 3


async def test_fractions_and_limits(buffer: TrajectoryBuffer) -> None:
    changes = await buffer.set_live({"run_ahead": 0.5, "max_journal_mib": 3, "max_ready_groups": 4})
    assert [(c.old, c.new) for c in changes] == [(1, 0.5), (None, 3), (None, 4)]
    assert (await buffer.snapshot()).rules.max_journal_bytes == 3 * 2**20
    assert [(c.old, c.new) for c in await buffer.set_live({"max_ready_groups": None})] == [(4, None)]
    live = await buffer.live_settings()
    assert (live["scheduling.run_ahead"], live["buffer.max_journal_mib"], live["buffer.max_ready_groups"]) == (
        0.5,
        3,
        None,
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_stalness": 3}, "no live setting 'max_stalness': did you mean 'max_staleness'"),
        ({"trainer.learning_rate": 1}, "no live setting"),
        ({"max_lag": 4, "scheduling.max_lag": 5}, "scheduling.max_lag is given twice.*: leave one out"),
        ({"producer.count": 3}, r"producer.count cannot be changed in a live run.*resume it with producer.count=VALUE"),
        ({"max_staleness": "four"}, r"scheduling.max_staleness: .*valid integer"),
        ({"max_staleness": True}, "must be a number"),
        ({"concurrency": 0}, "producer.concurrency: .*greater than 0"),
        ({"max_staleness": 4}, "max_staleness=4 is more than max_lag=3"),
        ({"run_ahead": 2, "max_lag": 1, "max_staleness": 1}, "run_ahead=2 is more than max_lag=1"),
        ({"max_ready_groups": 1}, "max_ready_groups=1 is less than rollout.groups_per_step=2"),
        ({"max_ready_groups": "1"}, "max_ready_groups=1 is less than rollout.groups_per_step=2"),
    ],
)
async def test_what_is_wrong_is_refused_as_a_whole(buffer: TrajectoryBuffer, values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await buffer.set_live({"max_refills_per_group": 7, **values})
    assert (await buffer.snapshot()).rules == RULES
    assert await buffer.setting_changes() == []


async def test_a_lost_reply_changes_nothing_twice(buffer: TrajectoryBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    script, replies = buffer._connection.script, []

    async def deaf(name: str, *arguments: object, **options: object) -> object:
        replies.append(await script(name, *arguments, **options))
        replies.append(await script(name, *arguments, **options))
        return replies[-1]

    monkeypatch.setattr(buffer._connection, "script", deaf)
    changes = await buffer.set_live({"max_lag": 9, "run_ahead": 2})
    assert replies[0] == replies[1]
    assert len(changes) == 2
    monkeypatch.undo()
    assert await buffer.setting_changes() == changes


async def test_values_are_checked_beside_those_in_force(buffer: TrajectoryBuffer, other: TrajectoryBuffer) -> None:
    """Two that contradict each other never both land."""
    raised = await asyncio.gather(
        buffer.set_live({"max_staleness": 3}), other.set_live({"max_lag": 2, "run_ahead": 1}), return_exceptions=True
    )
    rules = (await buffer.snapshot()).rules
    assert rules.max_staleness <= rules.max_lag
    assert sum(isinstance(answer, ConfigError) for answer in raised) == 1


async def test_a_run_that_changes_all_the_time_is_named(
    buffer: TrajectoryBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def changed(*_: object) -> list[bytes]:
        return [b"changed"]

    monkeypatch.setattr(buffer._connection, "script", changed)
    with pytest.raises(BufferUnavailable, match="try again"):
        await buffer.set_live({"max_lag": 9})


async def test_producers_hear_of_concurrency_with_their_heartbeat(buffer: TrajectoryBuffer) -> None:
    assert buffer.concurrency == 0
    await buffer.set_live({"concurrency": 5})
    assert await buffer.heartbeat("p", 600.0) is RunState.RUNNING
    assert buffer.concurrency == 5


async def test_admission_and_pull_go_by_the_new_values(buffer: TrajectoryBuffer) -> None:
    claim = await buffer.claim_trainer()
    assert len(await buffer.lease("p", 100)) == 8  # run_ahead 1: two steps of two groups of two
    await buffer.set_live({"run_ahead": 2})
    assert len(await buffer.lease("p", 100)) == 4
    await buffer.set_live({"run_ahead": 0, "max_staleness": 0, "max_lag": 0})
    assert await buffer.lease("p", 100) == []
    # All six groups are due now: any two would do, were they complete.
    assert await waits_for(buffer, claim, 1) == "not_enough_complete"


async def test_a_step_keeps_the_knobs_it_was_taken_with(buffer: TrajectoryBuffer, other: TrajectoryBuffer) -> None:
    await play(buffer, 8)
    claim = await buffer.claim_trainer()
    first = await entry(buffer, claim, 1)
    await buffer.set_live({"max_staleness": 1, "max_lag": 5})
    second = await entry(buffer, claim, 2)
    assert [(e.max_staleness, e.max_lag) for e in (first, second)] == [(2, 3), (1, 5)]
    again = await other.claim_trainer()
    assert [await entry(other, again, step) for step in (1, 2)] == [first, second]


async def test_groups_admitted_before_the_bound_was_lowered_go_oldest_first(buffer: TrajectoryBuffer) -> None:
    claim = await buffer.claim_trainer()
    slow, *others = await buffer.lease("p", 8)
    for sample in others:
        await finish(buffer, sample)
    await entry(buffer, claim, 1)
    await buffer.engine_serving("engine-0", WeightVersion(1))
    await play(buffer, 4)
    await buffer.set_live({"run_ahead": 0, "max_staleness": 0, "max_lag": 0})
    assert await waits_for(buffer, claim, 2) == "lag_rule"
    await finish(buffer, slow)
    assert slow.lease.sample_id.group in (await entry(buffer, claim, 2)).groups


async def test_a_resume_keeps_what_was_set(buffer: TrajectoryBuffer) -> None:
    await buffer.open_run(ASKED)
    await buffer.set_live({"max_lag": 9, "max_staleness": 5, "concurrency": 99})
    known = await buffer.setting_changes()
    await buffer.open_run(replace(ASKED, total_groups=500))
    assert (await buffer.snapshot()).rules == replace(
        ASKED, max_lag=9, max_staleness=5, concurrency=99, total_groups=500
    )
    assert await buffer.setting_changes() == known


async def test_settings_that_ask_for_another_value_than_before_win(buffer: TrajectoryBuffer) -> None:
    await buffer.open_run(ASKED)
    await buffer.set_live({"max_lag": 9, "max_staleness": 5, "max_refills_per_group": 6})
    await buffer.open_run(replace(ASKED, max_staleness=1))
    # The three go together; what the settings never changed stays as it was set.
    assert (await buffer.snapshot()).rules == replace(ASKED, max_staleness=1, max_refills_per_group=6)
    resumed = [change for change in plain(await buffer.setting_changes()) if change[-1] == "resume"]
    assert [change[1:4] for change in resumed] == [
        ("producer.concurrency", 0, 8), ("scheduling.max_staleness", 5, 1), ("scheduling.max_lag", 9, 3),
    ]  # fmt: skip


async def test_a_run_that_was_never_opened_has_no_settings(server: EmbeddedServer, run_name: str) -> None:
    async with await TrajectoryBuffer.connect(server.url, run_name) as unopened:
        for call in (unopened.set_live({"max_lag": 3}), unopened.live_settings()):
            with pytest.raises(ConfigError, match=run_name):
                await call
