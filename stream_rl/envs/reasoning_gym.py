"""Any task of the `reasoning-gym` package, with another try after a wrong answer.

    environment.args.dataset    name of a generator, for instance `chain_sum`
    environment.args.config     its settings, for instance `{max_terms: 2}`

The answer is what stands between `<answer>` and `</answer>`, or the whole response where there is no such mark. The
episode's reward is the best score so far; each step gives what it adds, so that the sum over turns is the best.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import orjson

from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.errors import ActionError, EnvironmentLoadError

__all__ = ["ReasoningGym", "build_env", "prompt"]

SOLVED = 0.999
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_DATASET_SIZE = 1_000_000


def prompt(seed: int, index: int, args: Any) -> dict[str, Any]:
    """The task with this index; the label says where it came from, so that `build_env` can make it again."""
    settings = _settings(getattr(args, "dataset", None), getattr(args, "config", None))
    item = _dataset(*settings, seed)[index % _DATASET_SIZE]
    return {"prompt": item["question"], "label": {"seed": seed, "index": index}}


def build_env(
    sample: Any = None, args: Any = None, *, dataset: Any = None, config: Any = None, **_: Any
) -> ReasoningGym:
    """An episode on the task that `sample.label` ({"seed", "index"}) names."""
    tasks = _dataset(*_settings(dataset, config), int(sample.label["seed"]))
    return ReasoningGym(tasks, tasks[int(sample.label["index"]) % _DATASET_SIZE])


class ReasoningGym(BaseInteractionEnv):
    """One task. Scorers may be slow, so it is sync and runs in a thread."""

    def __init__(self, dataset: Any, item: Mapping[str, Any]) -> None:
        self._dataset = dataset
        self._item = item
        self._best = 0.0

    def reset(self) -> tuple[Observation, Info]:
        """The question is the prompt."""
        self._best = 0.0
        return {}, {}

    def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Scores an answer. Raises ActionError for an empty one."""
        marked = _ANSWER.findall(response_text)
        answer = (marked[-1] if marked else response_text).strip()
        if not answer:
            raise ActionError("Your answer is empty. Please answer again.")
        score = float(self._dataset.score_answer(answer, self._item))
        gain = max(score - self._best, 0.0)
        self._best += gain
        return {"obs_str": "That is not right. Please try again."}, score >= SOLVED, {"reward": gain, "score": score}

    def state_dict(self) -> dict[str, Any]:
        """The best score so far; the task itself is the sample's label."""
        return {"best": self._best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._best = float(state["best"])


def _settings(dataset: Any, config: Any) -> tuple[str, bytes]:
    if not dataset:
        raise EnvironmentLoadError("environment.args.dataset is missing: name a generator, for instance chain_sum")
    return str(dataset), orjson.dumps(config or {})


@functools.lru_cache(maxsize=16)
def _dataset(name: str, config: bytes, seed: int) -> Any:
    try:
        import reasoning_gym  # noqa: PLC0415 - an extra: only runs that use it need it
    except ImportError as error:
        raise EnvironmentLoadError("environment.path='reasoning_gym' needs `pip install reasoning-gym`") from error
    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=_DATASET_SIZE, **orjson.loads(config))
    except (AssertionError, TypeError, ValueError) as error:
        raise EnvironmentLoadError(f"environment.args.dataset={name!r} with that config: {error}") from error
