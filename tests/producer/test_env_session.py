"""What is not an environment is named when it is built or first used."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stream_rl.envs.base import EnvSample
from stream_rl.envs.loading import EnvironmentModule
from stream_rl.errors import EnvFatalError
from stream_rl.producer.env_session import EnvSession
from stream_rl.producer.env_threads import EnvThreads


def session(build: Callable[..., Any]) -> EnvSession:
    sample = EnvSample("q", None, {})
    return EnvSession(EnvironmentModule("mine", build), sample, SimpleNamespace(), EnvThreads(1), 5.0)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (None, "not None: it has no reset"),
        (SimpleNamespace(step=print), "it has no reset"),
        (SimpleNamespace(reset=print), "it has no step"),
    ],
)
async def test_what_build_env_returns_must_be_an_environment(env: object, message: str) -> None:
    with pytest.raises(EnvFatalError, match=message):
        await session(lambda **_: env).build()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (5, r"reset must return \(observation, info\), not 5"),
        ((1, 2, 3), r"reset must return \(observation, info\)"),
        (("text", {}), "an observation must be None or a mapping with obs_str, not 'text'"),
    ],
)
async def test_what_reset_returns_must_be_an_observation(answer: object, message: str) -> None:
    env = SimpleNamespace(reset=lambda: answer, step=print)
    started = session(lambda **_: env)
    await started.build()
    with pytest.raises(EnvFatalError, match=message):
        await started.reset()
