"""Thirty-two environments that hang at once: the others play on to their end meanwhile, and each hang is timed out.

Nothing here is measured: the time-out comes ten minutes later by a clock that the test sets.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from rollouts import ScriptedEngines, ids, play

from stream_rl.producer.prompts import PromptRow
from stream_rl.sample import StopReason

HANGING, OTHERS, TURNS = 32, 32, 5


def timed_out() -> float:
    labels = {"environment": "stuck_env", "cause": "timeout", "outcome": "retried"}
    return REGISTRY.get_sample_value("stream_rl_env_retries_total", labels) or 0.0


def hanging(folder: Path) -> int:
    """Steps that have begun to hang."""
    return len(list(folder.glob("hangs-*")))


@pytest.mark.parametrize("executor", ["threads", "processes"])
async def test_the_others_are_not_delayed_and_each_is_timed_out_and_counted(rollout, tmp_path, monkeypatch, executor):
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", asyncio.BaseEventLoop.time)
    monkeypatch.setattr("stream_rl.producer.retries.FIRST_PAUSE", 0.001)
    loaded = rollout(**{
        "environment.path": "stuck_env", "environment.args": {"folder": str(tmp_path)}, "environment.step_timeout": 300,
        "environment.executor": executor, "environment.executor_processes": 2,
        "environment.executor_threads": HANGING + 2, "rollout.max_turns": TURNS,
        "rollout.deadline": 1e6,
    })  # fmt: skip

    def playing(label: str) -> asyncio.Task:
        engines = ScriptedEngines(lambda _: ids("4 <|im_end|>"))
        return asyncio.create_task(play(loaded, engines, row=PromptRow("guess", label)))

    before = timed_out()
    hung = [playing(f"hangs-{number}") for number in range(HANGING)]
    try:
        async with asyncio.timeout(60):
            while hanging(tmp_path) < HANGING:
                await asyncio.sleep(0.01)
            others = [await one for one in [playing("goes") for _ in range(OTHERS)]]

        assert [len(journal.turns) for _, journal in others] == [TURNS] * OTHERS
        assert not any(one.done() for one in hung)
        assert timed_out() == before

        (tmp_path / "later").touch()
        for one in [playing("goes") for _ in range(8)]:  # so that the event loop of every process looks at its clock
            await one
        ended = [await one for one in hung]
    finally:
        (tmp_path / "over").touch()
        loaded.close()

    assert timed_out() == before + HANGING
    for sample, journal in ended:
        assert (sample.stop_reason, sample.reward) == (StopReason.MAX_TURNS, float(TURNS))
        assert [turn.env_retries for turn in journal.turns] == [1, 0, 0, 0, 0]
