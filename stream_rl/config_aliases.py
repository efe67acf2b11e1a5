"""slime's names of settings, and its custom-config file, turned into our own names; docs/slime.md lists them.

A setting may be given by either name, but not by both: that is refused, since one of the two would be lost in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from stream_rl.errors import ConfigError

__all__ = ["ALIASES", "CUSTOM_CONFIG", "in_own_names", "place_aliases"]

ALIASES = {
    "custom_generate_function_path": "rollout.agent",
    "custom_rm_path": "environment.reward_path",
    "entropy_coef": "trainer.entropy_coefficient",
    "eval_function_path": "evaluation.agent",
    "hf_checkpoint": "model.path",
    "input_key": "data.prompt_field",
    "label_key": "data.label_field",
    "lr": "trainer.learning_rate",
    "max_turns": "rollout.max_turns",
    "multimodal_keys": "data.image_field",
    "n_samples_per_prompt": "rollout.group_size",
    "num_rollout": "trainer.steps",
    "prompt_data": "data.path",
    "reward_key": "environment.reward_key",
    "rollout_batch_size": "rollout.groups_per_step",
    "rollout_function_path": "rollout.agent",
    "rollout_interaction_env_path": "environment.path",
    "rollout_max_context_len": "rollout.max_context_len",
    "rollout_max_response_len": "rollout.max_response_len",
    "rollout_seed": "seed",
    "rollout_shuffle": "data.shuffle",
    "rollout_temperature": "rollout.temperature",
    "save_interval": "trainer.checkpoint_every",
}
CUSTOM_CONFIG = "custom_config_path"
"""Names a YAML file as slime's: what is no alias in it becomes an attribute of the environment's `args`."""

Assignment = tuple[str, Any]
Read = Callable[[Path], dict[str, Any]]


def in_own_names(assignments: Iterable[Assignment], read: Read) -> list[Assignment]:
    """`key.path` and value pairs with slime's names replaced, the custom-config file among them read.

    Raises:
        ConfigError: one setting by two names, or a file that cannot be read.
    """
    given: dict[str, str] = {}
    translated: list[Assignment] = []
    for name, value in _expanded(assignments, read):
        own = ALIASES.get(name, name)
        if given.setdefault(own, name) != name:
            raise ConfigError(_two_names(given[own], name))
        translated.append((own, value))
    return translated


def place_aliases(tree: dict[str, Any], read: Read) -> None:
    """Moves slime's names at the top of a tree of settings to where ours stand.

    Raises:
        ConfigError: as `in_own_names`; or our name is there as well.
    """
    found = [(name, tree.pop(name)) for name in list(tree) if name in ALIASES or name == CUSTOM_CONFIG]
    given = dict(_expanded(found, read))
    for own, value in in_own_names(found, read):
        *parents, last = own.split(".")
        section = tree
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise ConfigError(f"{parent} is a section: write its settings below it")
        if last in section:
            raise ConfigError(_two_names(own, next(name for name in given if ALIASES.get(name, own) == own)))
        section[last] = value
    if "rollout_max_response_len" in given:  # slime has no limit of one turn
        tree["rollout"].setdefault("max_turn_len", given["rollout_max_response_len"])


def _expanded(assignments: Iterable[Assignment], read: Read) -> Iterator[Assignment]:
    for name, value in assignments:
        if name != CUSTOM_CONFIG:
            yield name, value
            continue
        if not isinstance(value, str):
            raise ConfigError(f"{CUSTOM_CONFIG}={value!r} must be the path of a YAML file")
        for key, setting in read(Path(value)).items():
            yield (key if key in ALIASES else f"environment.args.{key}"), setting


def _two_names(one: str, other: str) -> str:
    return f"{one!r} and {other!r} are two names of one setting: keep one"
