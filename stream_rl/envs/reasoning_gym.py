"""Any task of the `reasoning-gym` package, with another try after a wrong answer.

    environment.args.dataset    name of a generator, for instance `chain_sum`
    environment.args.config     its settings, for instance `{max_terms: 2}`

The answer is what stands between `<answer>` and `</answer>`, or the whole response where there is no such mark. The
episode's reward is the best score so far; each step gives what it adds, so that the sum over turns is the best.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any

import orjson

from stream_rl.envs.arguments import options_of, reason
from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.envs.labels import label_parts, whole_number
from stream_rl.errors import ActionError, EnvironmentLoadError
from stream_rl.suggestion import did_you_mean

__all__ = ["ReasoningGym", "build_env", "prompt"]

SOLVED = 0.999
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_DATASET_SIZE = 1_000_000
_SMALLER = {"acre": 1_000, "word_ladder": 20_000}
"""Tasks of generators that make all of them at once, or refuse to make more."""
_HASHED = frozenset({
    "isomorphic_strings", "knight_swap", "list_functions", "polynomial_multiplication", "ransom_note", "word_ladder",
})  # fmt: skip
"""Generators whose tasks depend on the order of sets, which is another in every process unless it is fixed."""


def prompt(seed: int, index: int, args: Any) -> dict[str, Any]:
    """The task with this index; the label says where it came from, so that `build_env` can make it again."""
    settings = _settings(getattr(args, "dataset", None), getattr(args, "config", None))
    item = _item(settings[0], _dataset(*settings, seed), index)
    return {"prompt": item["question"], "label": {"seed": seed, "index": index}}


def build_env(
    sample: Any = None, args: Any = None, *, dataset: Any = None, config: Any = None, **_: Any
) -> ReasoningGym:
    """An episode on the task that `sample.label` ({"seed", "index"}) names.

    Raises EnvironmentLoadError or DataError.
    """
    seed, index = (
        whole_number(part, "reasoning_gym", 0) for part in label_parts(sample.label, "reasoning_gym", "seed", "index")
    )
    settings = _settings(dataset, config)
    tasks = _dataset(*settings, seed)
    return ReasoningGym(tasks, _item(settings[0], tasks, index))


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
        """Scores an answer. Raises ActionError for an empty one, and for one that cannot be scored."""
        marked = _ANSWER.findall(response_text)
        answer = (marked[-1] if marked else response_text).strip()
        if not answer:
            raise ActionError("Your answer is empty. Please answer again.")
        score = self._score(answer)
        gain = max(score - self._best, 0.0)
        self._best += gain
        return {"obs_str": "That is not right. Please try again."}, score >= SOLVED, {"reward": gain, "score": score}

    def _score(self, answer: str) -> float:
        try:
            return float(self._dataset.score_answer(answer, self._item))
        except Exception as error:  # some scorers read what is no answer, as a text where a number must stand, and fail
            raise ActionError("Your answer cannot be read. Please answer again.") from error

    def state_dict(self) -> dict[str, Any]:
        """The best score so far; the task itself is the sample's label."""
        return {"best": self._best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._best = float(state["best"])


def _settings(dataset: Any, config: Any) -> tuple[str, bytes]:
    if not dataset:
        raise EnvironmentLoadError("environment.args.dataset is missing: name a generator, for instance chain_sum")
    return str(dataset), orjson.dumps(options_of("config", config), option=orjson.OPT_SORT_KEYS)


def _item(name: str, tasks: Any, index: int) -> Mapping[str, Any]:
    try:
        item: Mapping[str, Any] = tasks[index % len(tasks)]
    except Exception as error:  # a generator may raise anything for settings that it has taken
        raise EnvironmentLoadError(f"environment.args.config of {name!r} gives no task: {reason(error)}") from error
    return item


@functools.lru_cache(maxsize=16)
def _dataset(name: str, config: bytes, seed: int) -> Any:
    try:
        import reasoning_gym  # noqa: PLC0415 - an extra: only runs that use it need it
        from reasoning_gym.composite import DatasetSpec  # noqa: PLC0415 - as above
    except ImportError as error:
        raise EnvironmentLoadError("environment.path='reasoning_gym' needs `pip install reasoning-gym`") from error
    known = reasoning_gym.factory.DATASETS
    if name not in known:
        hint = did_you_mean(name, known, "docs/games.md says which there are")
        raise EnvironmentLoadError(f"environment.args.dataset={name!r} is no generator of reasoning-gym: {hint}")
    _check_order(name)
    try:
        settings = {"size": _SMALLER.get(name, _DATASET_SIZE), **orjson.loads(config)}
        if "datasets" in settings:  # of `composite`
            settings["datasets"] = [DatasetSpec(**part) for part in settings["datasets"]]
            for part in settings["datasets"]:
                _check_order(part.name)
        return reasoning_gym.create_dataset(name, seed=seed, **settings)
    except EnvironmentLoadError:
        raise
    except Exception as error:  # a generator may raise anything for settings that it does not like
        raise EnvironmentLoadError(f"environment.args.config={config.decode()} of {name!r}: {reason(error)}") from error


def _check_order(name: str) -> None:
    """A sample that is resumed in another process, or a sibling there, must have the same task."""
    if name in _HASHED and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise EnvironmentLoadError(
            f"environment.args.dataset={name!r} makes other tasks in every process: start the run with PYTHONHASHSEED=0"
        )
