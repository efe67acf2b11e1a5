"""The examples' own modules."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stream_rl.envs.loading import load_environment


@pytest.mark.usefixtures("in_the_checkout")
async def test_a_slow_world_answers_as_the_game_later(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    module = load_environment("examples/slow_guess_number.py")
    monkeypatch.setattr("asyncio.sleep", sleep)
    env = module.build_env(sample=SimpleNamespace(label=3), seconds=0.25)
    assert await env.step("5") == ({"obs_str": "lower"}, False, {"reward": pytest.approx(0.1)})
    assert slept == [0.25]
