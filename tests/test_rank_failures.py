"""Of several ranks that end, the one that has the cause is named, whoever is heard of first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from stream_rl.errors import ConfigError, ProcessDied, RankLost
from stream_rl.rank_failures import all_ranks


async def life(seconds: float, error: Exception | None = None) -> None:
    """Ends after a while, well or not."""
    await asyncio.sleep(seconds)
    if error is not None:
        raise error


LOST = RankLost("another rank ended")


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (ProcessDied("killed"), (ProcessDied, "rank 1: killed")),
        (ConfigError("trainer.steps=3"), (ConfigError, r"^trainer\.steps=3")),
    ],
)
async def test_the_cause_is_told_though_the_loss_of_it_is_heard_of_first(
    cause: Exception, told: tuple[type[Exception], str]
) -> None:
    with pytest.raises(told[0], match=told[1]):
        await all_ranks([life(0.0, LOST), life(0.05, cause), life(0.0, LOST)])


async def test_a_rank_that_does_not_end_is_not_waited_for_and_is_ended() -> None:
    ended = []

    async def stuck() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("stuck")

    async with asyncio.timeout(10.0):
        with pytest.raises(RankLost, match="another rank ended"):
            await all_ranks([stuck(), life(0.0, LOST)], patience=0.05)
    assert ended == ["stuck"]


async def test_ranks_that_end_well_are_all_waited_for() -> None:
    ended: list[int] = []

    def rank(number: int) -> Coroutine[Any, Any, None]:
        async def one() -> None:
            await asyncio.sleep(0.01 * number)
            ended.append(number)

        return one()

    await all_ranks([rank(2), rank(0)], patience=0.0)
    assert ended == [0, 2]


async def test_who_is_cancelled_ends_all_ranks() -> None:
    ended = []

    async def rank() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("rank")

    training = asyncio.create_task(all_ranks([rank(), rank()]))
    await asyncio.sleep(0.01)
    training.cancel()
    with pytest.raises(asyncio.CancelledError):
        await training
    assert ended == ["rank", "rank"]
