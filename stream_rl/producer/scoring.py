"""The reward of a finished sample: what its turns gave, or what a user's function says of it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
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
        config: of it `reward_key`, where the answer is a mapping, is the key of the reward in it.
    """

    def __init__(self, function: RewardFunction, config: EnvironmentConfig, chat: ChatEncoder) -> None:
        self._function = function
        self._key = config.reward_key
        self._name = f"environment.reward_path={config.reward_path!r}"
        self._chat = chat

    async def __call__(self, args: SimpleNamespace, sample: Sample) -> float:
        """The function's answer.

        Raises:
            ConfigError: the answer is no number, or `environment.reward_key` does not fit it.
            ValueError: the answer is no finite number.
        """
        prompt = self._chat.decode(sample.prompt_tokens, special=True)
        answer = self._function(args, slime.finished(sample, prompt, self._chat.decode(sample.response)))
        if not inspect.isawaitable(answer):
            raise ConfigError(f"{self._name} must be async, and its call gave {answer!r:.80}: make it `async def`")
        reward = slime.reward_value(await answer, self._key, f"the answer of {self._name}")
        if not math.isfinite(reward):
            raise ValueError(f"the answer of {self._name} is {reward}")
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
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigError(f"environment.reward_path={path!r} must take (args, sample): {error}") from error
    except ValueError:  # a callable of C has no signature
        pass
    return Reward(function, config, chat)


async def score(sample: Sample, reward: Reward | None, args: SimpleNamespace) -> float:
    """The sum of the turns' rewards, or what the function says. Raises as Reward."""
    return math.fsum(turn.reward for turn in sample.turns) if reward is None else await reward(args, sample)
