"""Environments in processes: as good as here, and what hangs or dies takes no other one along for long."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from stream_rl.envs.base import EnvSample, ResumeClass, resume_class
from stream_rl.errors import ActionError, EnvInfraError
from stream_rl.producer import env_processes
from stream_rl.producer.env_processes import EnvProcesses, RemoteEnv


@pytest.fixture
async def processes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EnvProcesses]:
    """One process, and half a second for a call."""
    monkeypatch.setattr(env_processes, "GRACE", 0.2)
    running = EnvProcesses("hanging_env", count=1, limit=8, timeout=0.5)
    yield running
    running.close()


async def build(processes: EnvProcesses, label: object = 7) -> RemoteEnv:
    return await processes.build_env(sample=EnvSample("guess", label), args=SimpleNamespace())


async def test_an_environment_answers_as_it_would_here(processes):
    env = await build(processes)
    assert resume_class(env) is ResumeClass.SNAPSHOT
    assert not hasattr(env, "cut")

    assert await env.reset() == ({"obs_str": "label 7"}, {})
    assert await env.step("go") == ({"obs_str": "go"}, False, {"reward": 1.0})
    assert env.state_dict() == {"steps": 1}
    assert env.format_observation({})["content"] == "1: go"
    with pytest.raises(ActionError, match=r"what\?") as mistake:
        await env.step("misspell")
    assert mistake.value.reward == -1.0
    assert env.state_dict() == {"steps": 2}
    assert env.format_observation({})["content"] == "2: what?"
    await env.load_state_dict({"steps": 40})
    await env.step("go")
    assert env.state_dict() == {"steps": 41}
    await env.close()


@pytest.mark.parametrize("action", ["break", "break with a lock", "return a function", "exit", "cancel"])
async def test_what_cannot_travel_is_infrastructure_and_hurts_nothing_else(processes, action):
    env = await build(processes)
    with pytest.raises(EnvInfraError) as failure:
        await env.step(action)
    assert failure.value.cause == "unknown"
    assert (await env.step("go"))[0] == {"obs_str": "go"}


async def test_one_that_hangs_is_timed_out_and_delays_no_other(processes):
    hanging, other = await build(processes), await build(processes)
    late = asyncio.create_task(hanging.step("sleep"))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    for _ in range(20):
        await other.step("go")
    assert time.monotonic() - began < 0.4
    with pytest.raises(EnvInfraError, match=r"step_timeout=0\.5") as lost:
        await late
    assert lost.value.cause == "timeout"
    assert other.state_dict() == {"steps": 20}
    await other.step("go")


@pytest.mark.parametrize("action", ["hold", "die"])
async def test_a_stuck_or_dead_process_is_replaced_and_what_it_held_is_infrastructure(processes, action):
    bad, other = await build(processes), await build(processes)
    with pytest.raises(EnvInfraError, match="process ended"):
        await bad.step(action)
    with pytest.raises(EnvInfraError, match="process ended") as lost:
        await other.step("go")
    assert lost.value.cause == "process"
    assert (await (await build(processes)).step("go"))[2] == {"reward": 1.0}


async def test_a_process_that_hangs_up_and_does_not_end_is_killed(processes):
    env = await build(processes)
    (process,) = processes._processes
    with pytest.raises(EnvInfraError, match="process ended"):
        await env.step("hang up")
    assert await asyncio.to_thread(process._popen.wait, 10) == -signal.SIGKILL


async def test_no_more_calls_than_the_limit_are_under_way(monkeypatch):
    processes = EnvProcesses("hanging_env", count=2, limit=1, timeout=0.3)
    first, second = await build(processes), await build(processes)
    waiting = asyncio.gather(first.step("sleep"), second.step("go"), return_exceptions=True)
    began = time.monotonic()
    slept, went = await waiting
    assert isinstance(slept, EnvInfraError)
    assert went[0] == {"obs_str": "go"}
    assert time.monotonic() - began > 0.25
    processes.close()


async def test_closing_ends_the_processes(processes):
    await build(processes)
    (process,) = processes._processes
    processes.close()
    async with asyncio.timeout(5):
        while process._popen.poll() is None:
            await asyncio.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(process._popen.pid, 0)
