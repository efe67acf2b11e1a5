"""What is not an environment is named when it is built or first used."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream_rl.agents.handover import Answer
from stream_rl.envs.base import EnvSample
from stream_rl.envs.loading import EnvironmentModule
from stream_rl.errors import ActionError, ConfigError, EnvError, EnvFatalError, EnvInfraError, ImageError
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


def raising(error: BaseException) -> Any:
    raise error


async def cancelled(_: str) -> Any:
    raise asyncio.CancelledError


async def leaves(_: str) -> Any:
    sys.exit(3)


SEEN = {"obs_str": "x"}


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        ({"step": lambda _: (SEEN, False, 1.0)}, EnvFatalError, "info must be None or a mapping, not 1.0"),
        ({"step": lambda _: raising(ActionError("?", float("nan")))}, EnvFatalError, "must be a finite number"),
        ({"step": lambda _: ({"multi_modal_data": {"video": [1]}}, False, {})}, ImageError, "multi_modal_data"),
        ({"format_observation": lambda seen: seen["absent"]}, EnvInfraError, "KeyError: 'absent'"),
        ({"format_observation": lambda _: "x"}, EnvFatalError, "must return a chat message, not 'x'"),
        ({"format_observation": lambda _: {"content": "x"}}, EnvFatalError, "must return a chat message"),
        ({"format_observation": lambda _: {"role": "user", "content": ["x"]}}, EnvFatalError, "must return a chat"),
        ({"step": lambda _: (SEEN, np.zeros(2), {})}, EnvInfraError, "truth value of an array"),
        ({"step": lambda _: ({"obs_str": np.zeros(2)}, False, {})}, EnvInfraError, "truth value of an array"),
        ({"step": lambda _: (SEEN, False, {"reward": 10**400})}, EnvFatalError, "must be a finite number, not 1000"),
        ({"step": lambda _: sys.exit(3)}, EnvInfraError, "SystemExit: 3"),
        ({"step": lambda _: raising(KeyboardInterrupt())}, EnvInfraError, "KeyboardInterrupt"),
        ({"step": lambda _: raising(asyncio.CancelledError())}, EnvInfraError, "CancelledError"),
        ({"step": leaves}, EnvInfraError, "SystemExit: 3"),
        ({"step": cancelled}, EnvInfraError, "cancelled from inside"),
        ({"state_dict": lambda: {"odds": float("nan")}}, EnvFatalError, "plain JSON values: JSON cannot hold nan"),
        ({"state_dict": lambda: {"left": {1, 2}}}, EnvFatalError, "state_dict must return plain JSON values: .*set"),
    ],
)
async def test_whatever_an_environment_returns_has_the_name_of_a_failure_of_its_own_sample(
    env: dict[str, Any], error: type[EnvError], message: str
) -> None:
    """What has no such name would end the producer, and with it every other sample that it plays."""
    whole = {"reset": print, "step": lambda _: (SEEN, False, {}), "load_state_dict": print, **env}
    played = session(lambda **_: SimpleNamespace(**whole))
    await played.build()
    with pytest.raises(error, match=message):
        await played.step(Answer("", np.zeros(0, np.int32), np.zeros(0, np.float32)))


async def test_a_step_that_its_own_caller_cancels_is_cancelled() -> None:
    async def waits(_: str) -> None:
        await asyncio.Event().wait()

    played = session(lambda **_: SimpleNamespace(reset=print, step=waits))
    await played.build()
    task = asyncio.create_task(played.step(Answer("", np.zeros(0, np.int32), np.zeros(0, np.float32))))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("error", [ConfigError("gone"), RuntimeError("gone"), SystemExit(3)])
async def test_what_a_close_raises_concerns_nobody(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    played = session(lambda **_: SimpleNamespace(reset=print, step=print, close=lambda: raising(error)))
    await played.build()
    await played.close()
    assert "close failed" in caplog.text
