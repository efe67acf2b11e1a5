"""One sample's environment: built, called under a time-out, its failures given names, and brought back after them.

Whatever an environment raises leaves here as one of three: `ActionError` becomes part of a step's answer,
`EnvFatalError` stays, and anything else is `EnvInfraError`. A user's mistake in the settings (`UserError`) passes.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from stream_rl.agents.chat import Chat
from stream_rl.agents.handover import Answer, Observed
from stream_rl.envs.base import (
    BaseInteractionEnv,
    EnvSample,
    Message,
    ResumeClass,
    is_empty,
    is_finite,
    is_message,
    mistakes_are_answers,
    resume_class,
)
from stream_rl.envs.loading import EnvironmentModule
from stream_rl.envs.plain import plain_copy
from stream_rl.errors import ActionError, EnvFatalError, EnvInfraError, ModelError, UserError
from stream_rl.multimodal import Encoded
from stream_rl.producer.env_threads import EnvThreads
from stream_rl.producer.world_calls import WorldCalls, named_failures
from stream_rl.sample import Int32, StopReason

__all__ = ["EnvSession", "Session", "Shown", "Step", "plain_state", "show"]

logger = logging.getLogger(__name__)

NOTHING_SAID: Message = {"role": "user", "content": ""}

Shown = Observed | Encoded
"""What the model is to read: messages, or ids where they are encoded already."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one action did.

    observation     the messages to show, none when there is nothing to show; or what they are in ids
    ends            why the episode ends here, None when it goes on
    state           what a resume needs of this turn: an environment's state_dict(), None where it has none
    parse_failures  actions that were none
    """

    observation: Shown
    ends: StopReason | None
    reward: float
    state: Mapping[str, Any] | None
    parse_failures: int = 0


class Session(Protocol):
    """What answers the model for one sample: its environment, or its agent loop. `build` it first; `close` it always.

    All methods raise EnvInfraError (build it again, and bring it back) or EnvFatalError; `build` also UserError.
    """

    @property
    def resume_class(self) -> ResumeClass:
        """How it comes back."""

    async def build(self) -> None:
        """Begins anew, without `reset`."""

    async def reset(self) -> tuple[Shown, Mapping[str, Any] | None]:
        """Starts the episode: what the model reads after the prompt, or prompt and all in ids; and the state."""

    async def step(self, answer: Answer) -> Step:
        """Acts on what the model said."""

    async def cut(self, answer: Answer) -> Step:
        """Scores an answer that was cut; the episode is over."""

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes a recorded state instead of `reset`."""

    def recall(self, states: Sequence[Mapping[str, Any] | None]) -> None:
        """Is told the states of all complete turns before it is brought back."""

    async def close(self) -> None:
        """Frees what it holds; raises nothing."""


class EnvSession:
    """The environment of one sample as a Session."""

    def __init__(
        self, module: EnvironmentModule, sample: EnvSample, args: SimpleNamespace, threads: EnvThreads, timeout: float
    ) -> None:
        self._module = module
        self._sample = sample
        self._args = args
        self._call = WorldCalls(threads, timeout)
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

    async def reset(self) -> tuple[Shown, Mapping[str, Any] | None]:
        """Starts the episode: the first observation's messages, and the state. Raises as `build`."""
        answer, state = await self._with_state(self._env.reset)
        with named_failures(self._timeout):
            return self._first_messages(answer), state

    async def step(self, answer: Answer) -> Step:
        """Acts. Raises EnvInfraError or EnvFatalError; the environment is unusable after the former."""
        said, state = await self._with_state(lambda: self._env.step(answer.text), self._env.step)
        with named_failures(self._timeout):
            return self._stepped(said, state)

    async def cut(self, answer: Answer) -> Step:
        """Scores a response that was cut. Raises as `step`."""
        score = getattr(self._env, "cut", None)
        if score is None or getattr(type(self._env), "cut", None) is BaseInteractionEnv.cut:
            return Step((), None, 0.0, None)
        info, state = await self._with_state(lambda: score(answer.text), score)
        return Step((), None, _reward(info), state)

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Sets a freshly built environment to a recorded state. Raises as `build`."""
        await self._call(partial(self._env.load_state_dict, copy.deepcopy(state)))

    def recall(self, states: Sequence[Mapping[str, Any] | None]) -> None:
        """Nothing: the newest state is the whole."""

    async def close(self) -> None:
        """Closes the environment; what it raises then concerns nobody any more, and neither does a hang."""
        env, self._env = self._env, None
        close = getattr(env, "close", None)
        if close is None or getattr(type(env), "close", None) is BaseInteractionEnv.close:
            return
        try:
            await self._call(close)
        except (EnvInfraError, EnvFatalError, UserError) as error:
            logger.warning("%s: close failed: %s", self._module.name, error)

    def _first_messages(self, answer: Any) -> Sequence[Message]:
        try:
            observation, _info = answer
        except (TypeError, ValueError) as error:
            raise EnvFatalError(f"reset must return (observation, info), not {answer!r:.80}") from error
        return self._messages(observation)

    def _stepped(self, said: Any, state: Mapping[str, Any] | None) -> Step:
        if isinstance(said, ActionError):
            reward = _reward({"reward": said.reward})
            return Step(self._messages({"obs_str": str(said)}), None, reward, state, parse_failures=1)
        try:
            observation, done, info = said
        except (TypeError, ValueError) as error:
            raise EnvFatalError(f"step must return (observation, done, info), not {said!r:.80}") from error
        return Step(self._messages(observation), StopReason.ENV_DONE if done else None, _reward(info), state)

    def _messages(self, observation: Mapping[str, Any] | None) -> Sequence[Message]:
        if observation is not None and not isinstance(observation, Mapping):
            raise EnvFatalError(f"an observation must be None or a mapping with obs_str, not {observation!r:.80}")
        if observation is None or is_empty(observation):
            return ()
        form: Callable[[Mapping[str, Any]], Any] = getattr(self._env, "format_observation", self._module.form)
        message = form(observation)
        if not is_message(message):
            raise EnvFatalError(f"format_observation must return a chat message, not {message!r:.80}")
        return (message,)

    async def _with_state(self, function: Callable[[], Any], named: Callable[..., Any] | None = None) -> Any:
        """The answer of `function` (an ActionError is one) and the state after it, in one visit to a thread."""
        env, keeps = self._env, self.resume_class is ResumeClass.SNAPSHOT

        def with_state(answer: Any) -> Any:
            return answer, plain_state(env.state_dict()) if keeps else None

        return await self._call(mistakes_are_answers(function, named or function, with_state))


async def show(observation: Shown, generated: Int32, chat: Chat) -> Encoded:
    """What stands between a turn and the next generation, in ids. An empty observation still ends the turn.

    Args:
        observation: what the model is to read.
        generated: the turn's ids, int32 (g,).
        chat: the chat form that messages are put in.

    Raises:
        EnvFatalError: the chat template cannot show the messages.
        ImageError: an image cannot be read.
    """
    if isinstance(observation, Encoded):
        return observation
    if isinstance(observation, np.ndarray):
        return Encoded(observation)
    try:
        return await chat.show_observation(observation or [NOTHING_SAID], generated)
    except ModelError as error:
        raise EnvFatalError(f"an observation cannot be shown: {error}") from error


def plain_state(state: Any) -> Mapping[str, Any] | None:
    """A copy of a state as its record keeps it, None of none. Raises EnvFatalError for what no record can hold."""
    try:
        plain: Mapping[str, Any] | None = None if state is None else plain_copy(dict(state))
    except (TypeError, ValueError) as error:
        raise EnvFatalError(f"state_dict must return plain JSON values: {error}, in {state!r:.80}") from error
    return plain


def _reward(info: Mapping[str, Any] | None) -> float:
    if info is not None and not isinstance(info, Mapping):
        raise EnvFatalError(f"info must be None or a mapping, not {info!r:.80}")
    reward = (info or {}).get("reward")
    if reward is None:
        return 0.0
    if not is_finite(reward):
        raise EnvFatalError(f"info['reward'] must be a finite number, not {reward!r:.80}")
    return float(reward)
