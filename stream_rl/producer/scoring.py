"""The reward of a finished sample: what its turns gave, or what a user's function says."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

from stream_rl.errors import ConfigError
from stream_rl.sample import Sample

RewardFunction = Callable[[SimpleNamespace, Sample], Awaitable[float]]


def load_reward(path: str | None) -> RewardFunction | None:
    """The function that `environment.reward_path` ("module:function") names; None for None. Raises ConfigError."""
    if path is None:
        return None
    module, colon, name = path.partition(":")
    if not colon:
        raise ConfigError(f"environment.reward_path={path!r} must be module:function")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:  # a user's module may raise anything when it is imported
        raise ConfigError(f"environment.reward_path={path!r} cannot be imported: {error}") from error
    if not callable(function):
        raise ConfigError(f"environment.reward_path={path!r}: the module has no function {name!r}")
    if inspect.isfunction(function) and not (inspect.iscoroutinefunction(function) or hasattr(function, "__wrapped__")):
        raise ConfigError(f"environment.reward_path={path!r} must be `async def {name}(args, sample)`: add async")
    return function  # type: ignore[no-any-return]


async def score(sample: Sample, reward: RewardFunction | None, args: SimpleNamespace) -> float:
    """The sum of the turns' rewards, or the function's answer.

    Raises:
        ValueError: the function's answer is no finite number.
    """
    if reward is None:
        return math.fsum(turn.reward for turn in sample.turns)
    answer = float(await reward(args, sample))
    if not math.isfinite(answer):
        raise ValueError(f"the reward function returned {answer}")
    return answer
