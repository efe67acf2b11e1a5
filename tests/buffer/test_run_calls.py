"""Rules, engines, outcomes and the picture of a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from journal_builders import RULES, finish

from stream_rl.buffer import EmbeddedServer, EngineRecord, ProcessRecord, RunRules, RunState, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.errors import ConfigError
from stream_rl.sample import WeightVersion


async def test_a_run_opened_again_keeps_its_counters(buffer: TrajectoryBuffer, other: TrajectoryBuffer) -> None:
    await buffer.lease("p", 3)
    await buffer.drain_run()
    before = await buffer.snapshot()
    await other.open_run(replace(RULES, total_groups=99))
    after = await other.snapshot()
    assert after == replace(before, state=RunState.RUNNING, rules=replace(RULES, total_groups=99))


async def test_another_group_size_is_refused(buffer: TrajectoryBuffer) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.group_size=3, but this run was begun with 2"):
        await buffer.open_run(replace(RULES, group_size=3, run_ahead=0))
    assert (await buffer.snapshot()).rules == RULES


async def test_a_run_that_was_never_opened_has_no_snapshot(server: EmbeddedServer, run_name: str) -> None:
    async with await TrajectoryBuffer.connect(server.url, run_name) as unopened:
        with pytest.raises(ConfigError, match=run_name):
            await unopened.snapshot()


def test_rules_are_the_settings() -> None:
    config = Config.parse(
        {"run": "runs/x", "model": {"path": "m"}, "environment": {"path": "e"}, "trainer": {"steps": 5}}
    )
    rules = RunRules.of(config)
    assert (rules.total_groups, rules.group_size, rules.max_lag) == (160, 8, 12)


async def test_an_engine_serves_only_after_it_was_given_weights(buffer: TrajectoryBuffer) -> None:
    await buffer.engine_joined("engine-1", "http://b", 2)
    await buffer.engine_serving("engine-0", WeightVersion(4, 1))
    assert await buffer.engines() == [
        EngineRecord("engine-0", "http://127.0.0.1:1", 1, "serving", WeightVersion(4, 1)),
        EngineRecord("engine-1", "http://b", 2, "joining"),
    ]
    assert (await buffer.snapshot()).engine_version == 4
    await buffer.engine_serving("engine-1", WeightVersion(3))
    assert (await buffer.snapshot()).engine_version == 3
    await buffer.engine_left("engine-1")
    assert (await buffer.snapshot()).engine_version == 4
    # A server started again under the same name has lost its weights.
    await buffer.engine_joined("engine-0", "http://127.0.0.1:1", 9)
    assert (await buffer.snapshot()).engine_version is None


async def test_an_engines_version_never_goes_back(buffer: TrajectoryBuffer) -> None:
    await buffer.engine_serving("engine-0", WeightVersion(12, 1))
    for older in (WeightVersion(11, 2), WeightVersion(12), WeightVersion(9)):
        await buffer.engine_serving("engine-0", older)
        assert (await buffer.engines())[0].version == WeightVersion(12, 1)
    await buffer.engine_serving("engine-0", WeightVersion(12, 2))
    assert (await buffer.engines())[0].version == WeightVersion(12, 2)


async def test_an_engine_older_than_a_live_groups_stamp_may_not_serve(buffer: TrajectoryBuffer) -> None:
    await buffer.engine_serving("engine-0", WeightVersion(3))
    (sample,) = await buffer.lease("p", 1)
    assert sample.v0 == 3
    await buffer.engine_joined("engine-1", "u", 1)
    with pytest.raises(ValueError, match="engine-1 has version 2, older than v0 3"):
        await buffer.engine_serving("engine-1", WeightVersion(2))
    with pytest.raises(ValueError, match="engine-7 has not joined"):
        await buffer.engine_serving("engine-7", WeightVersion(3))
    assert (await buffer.snapshot()).engine_version == 3


async def test_weights_given_to_a_process_that_died_do_not_count_for_its_successor(buffer: TrajectoryBuffer) -> None:
    await buffer.engine_joined("engine-0", "http://127.0.0.1:1", 2)
    with pytest.raises(ValueError, match="engine-0 is no longer process 1"):
        await buffer.engine_serving("engine-0", WeightVersion(1), pid=1)
    assert (await buffer.engines())[0].state == "joining"
    await buffer.engine_serving("engine-0", WeightVersion(1), pid=2)
    assert (await buffer.engines())[0].state == "serving"


async def test_outcomes_are_read_and_trimmed_by_number(buffer: TrajectoryBuffer) -> None:
    for sample in await buffer.lease("p", 4):
        await finish(buffer, sample, 0.25)
    first = await buffer.outcomes(3)
    assert [record.number for record in first] == [1, 2, 3]
    assert (first[0].sample, first[0].kind, first[0].status, first[0].reward) == ("0-0", "finished", "completed", 0.25)
    assert (first[0].turns, first[0].generated, first[0].response_length, first[0].v0) == (2, 6, 10, 0)
    for _ in range(2):
        await buffer.trim_outcomes(3)
    assert [record.number for record in await buffer.outcomes(3)] == [4]
    await buffer.trim_outcomes(99)
    assert await buffer.outcomes(3) == []


async def test_processes_and_recoveries_are_known(buffer: TrajectoryBuffer) -> None:
    record = ProcessRecord("producer-0", "producer", "host", 17, "http://127.0.0.1:9000/metrics")
    await buffer.register_process(replace(record, pid=16))
    await buffer.register_process(record)
    await asyncio.gather(*[buffer.count_recovery("engine") for _ in range(3)])
    snapshot = await buffer.snapshot()
    assert snapshot.processes == (record,)
    assert snapshot.recoveries == {"producer": 0, "engine": 3, "trainer": 0, "redis": 0}


async def test_runs_do_not_see_each_other(buffer: TrajectoryBuffer, server: EmbeddedServer) -> None:
    await buffer.lease("p", 1)
    async with await TrajectoryBuffer.connect(server.url, "neighbour") as neighbour:
        await neighbour.open_run(RULES)
        assert (await neighbour.snapshot()).admitted == 0
