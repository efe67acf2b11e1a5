"""Pinned engines are evaluated one at a time and released, whatever comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stream_rl.buffer import EngineRecord
from stream_rl.errors import EngineUnavailable
from stream_rl.pinned_evaluation import PinnedEvaluations
from stream_rl.sample import WeightVersion


class Pins:
    """A buffer that knows pins alone."""

    def __init__(self, **pinned: int) -> None:
        self.pinned = pinned

    async def engines(self) -> list[EngineRecord]:
        return [
            EngineRecord(name, "u", 1, "joining", None, WeightVersion(step)) for name, step in self.pinned.items()
        ] + [EngineRecord("free", "u", 1, "serving", WeightVersion(9))]

    async def release_engine(self, engine_id: str) -> None:
        del self.pinned[engine_id]


async def watched(pins: Pins, evaluate: Callable[[str], Any]) -> list[str]:
    """Watches until nothing is pinned; what was said."""
    said: list[str] = []
    evaluations = PinnedEvaluations(pins, evaluate, said.append, pause=0.001)  # type: ignore[arg-type]
    watching = asyncio.create_task(evaluations.watch())
    async with asyncio.timeout(10.0):
        while pins.pinned:
            await asyncio.sleep(0.001)
    await evaluations.finish(10.0)
    watching.cancel()
    await asyncio.wait([watching])
    return said


async def test_each_pinned_engine_is_played_on_and_released() -> None:
    under_way = []

    async def evaluate(engine_id: str) -> float:
        under_way.append(engine_id)
        await asyncio.sleep(0.005)
        assert engine_id in pins.pinned
        return 0.25

    pins = Pins(a=4, b=6)
    said = await watched(pins, evaluate)
    assert under_way == ["a", "b"]
    assert said == ["version 4 scores 0.250 on held-out prompts", "version 6 scores 0.250 on held-out prompts"]


async def test_a_failed_evaluation_is_told_and_the_engine_released() -> None:
    async def evaluate(engine_id: str) -> float:
        raise EngineUnavailable("gone")

    said = await watched(Pins(a=4), evaluate)
    assert said == ["version 4 could not be evaluated, the training goes on: gone"]


async def test_the_end_of_a_run_waits_for_what_is_under_way_but_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    pins, ends = Pins(a=4), asyncio.Event()

    async def evaluate(engine_id: str) -> float:
        await ends.wait()
        return 1.0

    evaluations = PinnedEvaluations(pins, evaluate, lambda line: None, pause=0.001)  # type: ignore[arg-type]
    watching = asyncio.create_task(evaluations.watch())
    await asyncio.sleep(0.01)
    await evaluations.finish(0.01)
    assert "did not end within" in caplog.text
    ends.set()
    await evaluations.finish(10.0)
    assert not pins.pinned
    watching.cancel()
    await asyncio.wait([watching])


@pytest.mark.parametrize("pinned_anew", [None, 7])
async def test_an_evaluation_ends_by_name_when_its_engine_leaves(pinned_anew: int | None) -> None:
    pins, played = Pins(a=4), []

    async def evaluate(engine_id: str) -> float:
        played.append(pins.pinned.pop(engine_id))
        if len(played) > 1:
            return 0.5
        if pinned_anew is not None:
            pins.pinned[engine_id] = pinned_anew  # by the trainer, of the process that came after
        return await asyncio.Event().wait() or 0.0

    said: list[str] = []
    evaluations = PinnedEvaluations(pins, evaluate, said.append, pause=0.001)  # type: ignore[arg-type]
    watching = asyncio.create_task(evaluations.watch())
    async with asyncio.timeout(10.0):
        while len(said) < 1 + (pinned_anew is not None):
            await asyncio.sleep(0.001)
    watching.cancel()
    await asyncio.wait([watching])
    assert said[0] == "version 4 could not be evaluated, the training goes on: a has left, or is pinned no more"
    assert played == [4, *([] if pinned_anew is None else [pinned_anew])]
    assert said[1:] == [] if pinned_anew is None else [f"version {pinned_anew} scores 0.500 on held-out prompts"]
