"""The function that a user names to score samples."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from stream_rl.errors import ConfigError
from stream_rl.producer.scoring import load_reward


@pytest.fixture
def rewards(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("rewards")
    monkeypatch.setitem(sys.modules, "rewards", module)
    return module


def test_an_async_function_is_found(rewards: ModuleType) -> None:
    async def good(args: object, sample: object) -> float:
        return 1.0

    rewards.good = good  # type: ignore[attr-defined]
    assert load_reward("rewards:good") is good
    assert load_reward(None) is None


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("rewards", "must be module:function"),
        ("absent_module:f", "cannot be imported"),
        ("rewards:absent", "has no function 'absent'"),
        ("rewards:number", "has no function 'number'"),
        ("rewards:plain", r"must be `async def plain\(args, sample\)`"),
    ],
)
def test_what_cannot_score_is_refused(rewards: ModuleType, path: str, message: str) -> None:
    rewards.number, rewards.plain = 3, lambda args, sample: 1.0  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=message):
        load_reward(path)
