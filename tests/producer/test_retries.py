"""Pauses that grow and spread."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from stream_rl.config import EnvironmentConfig
from stream_rl.errors import EnvFatalError, EnvInfraError
from stream_rl.producer.retries import EnvRetries


async def spent(retries: EnvRetries, times: int) -> None:
    for _ in range(times):
        await retries.spend(EnvInfraError("down"))


async def test_pauses_double_up_to_a_limit_and_half_of_each_is_chance():
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    chance = iter([1.0] * 9 + [0.0])
    config = EnvironmentConfig(path="x", max_env_retries_per_turn=10)
    await spent(EnvRetries(config, "x", sleep=sleep, jitter=lambda: next(chance)), 10)

    assert slept[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert slept[8:] == [10.0, 5.0]


async def test_a_turn_has_its_own_budget_and_the_sample_one_for_all():
    async def sleep(_: float) -> None:
        return None

    config = EnvironmentConfig(path="x", max_env_retries_per_turn=2, max_env_retries_per_sample=3)
    retries = EnvRetries(config, "x", sleep=sleep)
    await spent(retries, 2)
    retries.turn_completed()
    await spent(retries, 1)

    with pytest.raises(EnvFatalError, match="max_env_retries_per_sample=3 is spent: down"):
        await spent(retries, 1)


async def test_each_failure_is_counted_as_retried_or_as_the_one_that_was_too_many():
    async def sleep(_: float) -> None:
        return None

    def counted(outcome: str) -> float:
        labels = {"environment": "counted", "cause": "infra", "outcome": outcome}
        return REGISTRY.get_sample_value("stream_rl_env_retries_total", labels) or 0.0

    retries = EnvRetries(EnvironmentConfig(path="x", max_env_retries_per_turn=2), "counted", sleep=sleep)
    with pytest.raises(EnvFatalError):
        await spent(retries, 3)
    assert (counted("retried"), counted("spent")) == (2, 1)
