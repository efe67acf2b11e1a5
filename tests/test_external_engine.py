"""A server of engine.urls is given time to restart, and none for refusing updates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stream_rl.buffer import EngineRecord
from stream_rl.errors import ProcessDied
from stream_rl.external_engine import ExternalEngine
from stream_rl.sample import WeightVersion
from stream_rl.testing.fake_engine import FakeEngineServer
from stream_rl.testing.token_sources import scripted

PAUSE = 0.01


class Engines:
    """A buffer that knows engines alone, and a trainer that puts each one out, served or not."""

    def __init__(self, *, serves: bool = False) -> None:
        self.joined = 0
        self.recoveries: list[str] = []
        self.serves = serves
        self._looks = 0

    async def engine_joined(self, engine_id: str, url: str, pid: int) -> None:
        self.joined += 1
        self._looks = 2

    async def engines(self) -> list[EngineRecord]:
        self._looks -= 1
        state: Any = "serving" if self.serves else "joining"
        return [EngineRecord("engine-0", "u", 0, state, WeightVersion(0))] if self._looks > 0 else []

    async def count_recovery(self, kind: str) -> None:
        self.recoveries.append(kind)


@pytest.fixture
async def server() -> AsyncIterator[FakeEngineServer]:
    async with FakeEngineServer(scripted([1]), vocab_size=8) as running:
        yield running


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every pause that is longer than that between two looks."""
    sleep, pauses = asyncio.sleep, []

    async def noting(seconds: float) -> None:
        if seconds > PAUSE:
            pauses.append(seconds)
            seconds = 0.0
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", noting)
    return pauses


def external(url: str, engines: Engines, said: list[str], *, start_timeout: float = 10.0) -> ExternalEngine:
    return ExternalEngine("engine-0", url, engines, said.append, pause=PAUSE, start_timeout=start_timeout)  # type: ignore[arg-type]


async def test_one_that_answers_and_refuses_has_died_and_is_waited_for_longer_each_time(
    server: FakeEngineServer, slept: list[float]
) -> None:
    server.pause()  # as a failed update leaves it
    engines, said = Engines(), []
    engine = external(server.url, engines, said)
    for _ in range(16):
        with pytest.raises(ProcessDied, match=f"{server.url} answers, but did not take a weight update"):
            await engine.live()
    assert engines.joined == 16
    assert slept[:3] == [2 * PAUSE, 4 * PAUSE, 8 * PAUSE]
    assert slept[-1] == 60.0
    assert said == [f"engine-0 is up at {server.url}"] * 16


async def test_one_that_has_served_since_starts_with_the_shortest_pause(
    server: FakeEngineServer, slept: list[float]
) -> None:
    engines = Engines()
    engine = external(server.url, engines, [])
    for serves in (False, False, True, False):
        engines.serves = serves
        with pytest.raises(ProcessDied):
            await engine.live()
    assert slept == [2 * PAUSE, 4 * PAUSE, 2 * PAUSE]


async def test_one_that_restarts_is_waited_for_and_joined_again(server: FakeEngineServer, slept: list[float]) -> None:
    engines, said = Engines(), []
    engine_joined = engines.engine_joined

    async def join_and_die(engine_id: str, url: str, pid: int) -> None:
        await engine_joined(engine_id, url, pid)
        if engines.joined < 3:
            server.fail("/server_info", *["drop"] * 5, *["500"] * 5)

    engines.engine_joined = join_and_die  # type: ignore[method-assign]
    with pytest.raises(ProcessDied, match="did not take a weight update"):
        await external(server.url, engines, said).live()
    assert engines.joined == 3
    assert engines.recoveries == ["engine", "engine"]
    up, away = f"engine-0 is up at {server.url}", "engine-0 does not answer at"
    assert [line.startswith(away) for line in said] == [False, True] * 2 + [False]
    assert said[::2] == [up] * 3
    assert not slept


async def test_one_that_stays_away_has_died(server: FakeEngineServer) -> None:
    server.fail("/server_info", *["500"] * 1000)
    engines = Engines()
    with pytest.raises(ProcessDied, match=r"did not answer within engine\.start_timeout=0\.1 s"):
        await external(server.url, engines, [], start_timeout=0.1).live()
    assert not engines.joined
