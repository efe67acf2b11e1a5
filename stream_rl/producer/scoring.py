"""The reward of a finished sample: what its turns gave, or what a user's function says of it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

from stream_rl.agents.loading import load_object
from stream_rl.config import EnvironmentConfig
from stream_rl.errors import ConfigError
from stream_rl.producer.chat import ChatEncoder
from stream_rl.sample import Sample
from stream_rl.slime import types as slime

__all__ = ["Reward", "load_reward", "score"]

RewardFunction = Callable[[SimpleNamespace, slime.Sample], Awaitable[Any]]


class Reward:
    """A user's `async (args, sample) -> float or mapping`, which is shown the sample with its texts, as slime's.

    Args:
        key: where the answer is a mapping, the key of the reward in it: setting `environment.reward_key`.
    """

    def __init__(self, function: RewardFunction, key: str | None, chat: ChatEncoder) -> None:
        self._function = function
        self._key = key
        self._chat = chat

    async def __call__(self, args: SimpleNamespace, sample: Sample) -> float:
        """The function's answer.

        Raises:
            ConfigError: `environment.reward_key` does not fit the answer.
            ValueError: the answer is no finite number.
        """
        prompt = self._chat.decode(sample.prompt_tokens, special=True)
        answer = await self._function(args, slime.finished(sample, prompt, self._chat.decode(sample.response)))
        if isinstance(answer, Mapping):
            if self._key not in answer:
                known = ", ".join(map(str, answer))
                raise ConfigError(
                    f"environment.reward_key={self._key!r} is not in the reward function's answer: {known}"
                )
            answer = answer[self._key]
        reward = float(answer)
        if not math.isfinite(reward):
            raise ValueError(f"the reward function returned {answer}")
        return reward


def load_reward(config: EnvironmentConfig, chat: ChatEncoder) -> Reward | None:
    """The function that `environment.reward_path` names, None where it names none. Raises ConfigError."""
    path = config.reward_path
    if path is None:
        return None
    function = load_object(path, f"environment.reward_path={path!r}", "give module:function", ConfigError)
    if not callable(function):
        raise ConfigError(f"environment.reward_path={path!r} is no function")
    if inspect.isfunction(function) and not (inspect.iscoroutinefunction(function) or hasattr(function, "__wrapped__")):
        raise ConfigError(
            f"environment.reward_path={path!r} must be `async def {function.__name__}(args, sample)`: add async"
        )
    return Reward(function, config.reward_key, chat)


async def score(sample: Sample, reward: Reward | None, args: SimpleNamespace) -> float:
    """The sum of the turns' rewards, or what the function says. Raises as Reward."""
    return math.fsum(turn.reward for turn in sample.turns) if reward is None else await reward(args, sample)
