"""One sample's environment: built, called under a time-out, its failures given names, and brought back after them.

Whatever an environment raises leaves here as one of three: `ActionError` becomes part of a step's answer,
`EnvFatalError` stays, and anything else is `EnvInfraError`. A user's mistake in the settings (`UserError`) passes.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from stream_rl.envs.base import (
    BaseInteractionEnv,
    EnvSample,
    Message,
    ResumeClass,
    format_observation,
    is_empty,
    resume_class,
)
from stream_rl.envs.loading import EnvironmentModule
from stream_rl.errors import ActionError, EnvFatalError, EnvInfraError, UserError
from stream_rl.producer.env_threads import EnvThreads

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """What one action did.

    observation    the message to show, None when there is nothing to show
    state          the environment's state_dict() afterwards, None where it has none
    parse_failure  the action was none
    """

    observation: Message | None
    done: bool
    reward: float
    state: Mapping[str, Any] | None
    parse_failure: bool = False


class EnvSession:
    """The environment of one sample. `build` it first; `close` it always."""

    def __init__(
        self, module: EnvironmentModule, sample: EnvSample, args: SimpleNamespace, threads: EnvThreads, timeout: float
    ) -> None:
        self._module = module
        self._sample = sample
        self._args = args
        self._threads = threads
        self._timeout = timeout
        self._env: Any = None

    @property
    def resume_class(self) -> ResumeClass:
        """How the environment comes back."""
        return resume_class(self._env)

    async def build(self) -> None:
        """Makes a new environment, without `reset`. Raises EnvInfraError, EnvFatalError or UserError."""
        await self.close()
        named = self._module.named(self._args)
        self._env = await self._call(partial(self._module.build_env, sample=self._sample, args=self._args, **named))
        for method in ("reset", "step"):
            if not callable(getattr(self._env, method, None)):
                raise EnvFatalError(f"build_env must return an environment, not {self._env!r:.80}: it has no {method}")

    async def reset(self) -> tuple[Message | None, Mapping[str, Any] | None]:
        """Starts the episode: the first observation's message, if there is one, and the state. Raises as `build`."""
        answer, state = await self._with_state(self._env.reset)
        try:
            observation, _info = answer
        except (TypeError, ValueError) as error:
            raise EnvFatalError(f"reset must return (observation, info), not {answer!r:.80}") from error
        return self._message(observation), state

    async def step(self, text: str) -> Step:
        """Acts. Raises EnvInfraError or EnvFatalError; the environment is unusable after the former."""
        answer, state = await self._with_state(lambda: self._env.step(text), self._env.step)
        if isinstance(answer, ActionError):
            return Step(self._message({"obs_str": str(answer)}), False, answer.reward, state, parse_failure=True)
        try:
            observation, done, info = answer
        except (TypeError, ValueError) as error:
            raise EnvFatalError(f"step must return (observation, done, info), not {answer!r:.80}") from error
        return Step(self._message(observation), bool(done), _reward(info), state)

    async def cut(self, text: str) -> Step:
        """Scores a response that was cut. Raises as `step`."""
        score = getattr(self._env, "cut", None)
        if score is None or getattr(type(self._env), "cut", None) is BaseInteractionEnv.cut:
            return Step(None, True, 0.0, None)
        info, state = await self._with_state(lambda: score(text), score)
        return Step(None, True, _reward(info), state)

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Sets a freshly built environment to a recorded state. Raises as `build`."""
        await self._call(partial(self._env.load_state_dict, copy.deepcopy(state)))

    async def close(self) -> None:
        """Closes the environment; what it raises then concerns nobody any more, and neither does a hang."""
        env, self._env = self._env, None
        close = getattr(env, "close", None)
        if close is None or getattr(type(env), "close", None) is BaseInteractionEnv.close:
            return
        try:
            await self._call(close)
        except (EnvInfraError, EnvFatalError) as error:
            logger.warning("%s: close failed: %s", self._module.name, error)

    def _message(self, observation: Mapping[str, Any] | None) -> Message | None:
        if observation is not None and not isinstance(observation, Mapping):
            raise EnvFatalError(f"an observation must be None or a mapping with obs_str, not {observation!r:.80}")
        if observation is None or is_empty(observation):
            return None
        form: Callable[[Mapping[str, Any]], Message] = getattr(self._env, "format_observation", format_observation)
        return form(observation)

    async def _with_state(self, function: Callable[[], Any], named: Callable[..., Any] | None = None) -> Any:
        """The answer of `function` (an ActionError is one) and the state after it, in one visit to a thread."""
        env, keeps = self._env, self.resume_class is ResumeClass.SNAPSHOT

        def state() -> Any:
            return copy.deepcopy(env.state_dict()) if keeps else None

        async def visit() -> Any:
            try:
                answer = await function()
            except ActionError as error:
                answer = error
            return answer, state()

        def work() -> Any:
            try:
                answer = function()
            except ActionError as error:
                answer = error
            return answer, state()

        return await self._call(visit if inspect.iscoroutinefunction(named or function) else work)

    async def _call(self, function: Callable[[], Any]) -> Any:
        try:
            if not inspect.iscoroutinefunction(function):
                return await self._threads.run(function, self._timeout)
            async with asyncio.timeout(self._timeout):
                return await function()
        except (EnvInfraError, EnvFatalError, UserError):
            raise
        except TimeoutError as error:
            message = f"no answer within environment.step_timeout={self._timeout:g} seconds"
            raise EnvInfraError(message, cause="timeout") from error
        except Exception as error:  # whatever a world raises that has no name here is its infrastructure's fault
            raise EnvInfraError(f"{type(error).__name__}: {error}", cause="unknown") from error


def _reward(info: Mapping[str, Any] | None) -> float:
    reward = (info or {}).get("reward")
    if reward is None:
        return 0.0
    if not isinstance(reward, numbers.Real) or not math.isfinite(reward):
        raise EnvFatalError(f"info['reward'] must be a finite number, not {reward!r}")
    return float(reward)
