"""The one tree of settings: the sections of config_sections.py, read from YAML and checked. Imports no torch.

A run is `Config.load("run.yaml", ["trainer.learning_rate=1e-3"])`: YAML first, dotted overrides on top. Unknown keys
and wrong values raise `ConfigError` with the nearest right name, before anything is started.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from stream_rl.config_aliases import ALIASES, in_own_names, place_aliases
from stream_rl.config_engine import EngineConfig
from stream_rl.config_multimodal import MultimodalConfig
from stream_rl.config_sections import (
    BufferConfig,
    DataConfig,
    EnvironmentConfig,
    EvaluationConfig,
    MetricsConfig,
    ModelConfig,
    ProducerConfig,
    RolloutConfig,
    SchedulingConfig,
    Settings,
    SupervisionConfig,
)
from stream_rl.config_trainer import TrainerConfig
from stream_rl.errors import ConfigError
from stream_rl.suggestion import did_you_mean

__all__ = [
    "BufferConfig", "Config", "DataConfig", "EngineConfig", "EnvironmentConfig", "EvaluationConfig", "MetricsConfig",
    "ModelConfig", "MultimodalConfig", "ProducerConfig", "RolloutConfig", "SchedulingConfig", "SupervisionConfig",
    "TrainerConfig", "parse_assignment", "read_settings",
]  # fmt: skip


class Config(Settings):
    """Everything about one run."""

    run: str
    """The run's folder; its last part is the run's name and the prefix of its Redis keys."""
    seed: int = Field(0, ge=0)
    """Seeds prompts, sampling and the model's training."""
    model: ModelConfig
    environment: EnvironmentConfig = EnvironmentConfig()
    data: DataConfig = DataConfig()
    multimodal: MultimodalConfig = MultimodalConfig()
    rollout: RolloutConfig = RolloutConfig()
    producer: ProducerConfig = ProducerConfig()
    buffer: BufferConfig = BufferConfig()
    engine: EngineConfig = EngineConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    trainer: TrainerConfig = TrainerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    metrics: MetricsConfig = MetricsConfig()
    supervision: SupervisionConfig = SupervisionConfig()

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run)

    @property
    def name(self) -> str:
        """The run's name: part of every Redis key."""
        return self.folder.name

    @field_validator("run")
    @classmethod
    def _names_a_folder(cls, run: str) -> str:
        if Path(run).name in ("", "..") or not run.isprintable() or set(run) & set("{}") or run.startswith("~"):
            raise ValueError(f"{run!r} must end with the run's own name, without braces and control characters or ~")
        return run

    @model_validator(mode="after")
    def _agree(self) -> Config:
        rollout, ready = self.rollout, self.buffer.max_ready_groups
        if ready is not None and ready < rollout.groups_per_step:
            raise ValueError(
                f"buffer.max_ready_groups={ready} is less than rollout.groups_per_step={rollout.groups_per_step}: "
                "no step could ever be taken"
            )
        if self.trainer.mini_batches > rollout.groups_per_step:
            raise ValueError(
                f"trainer.mini_batches={self.trainer.mini_batches} is more than "
                f"rollout.groups_per_step={rollout.groups_per_step}"
            )
        if rollout.max_turn_len > rollout.max_response_len:
            raise ValueError(
                f"rollout.max_turn_len={rollout.max_turn_len} is more than "
                f"rollout.max_response_len={rollout.max_response_len}"
            )
        if self.trainer.turn_discount is not None and self.environment.reward_path is not None:
            raise ValueError("trainer.turn_discount needs the turns' own rewards: remove environment.reward_path")
        return self

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Config:
        """Reads a YAML file and `key.path=value` overrides (values are YAML too).

        Raises:
            ConfigError: one line that names the setting and the fix.
        """
        tree = read_settings(Path(path))
        place_aliases(tree, read_settings)
        for key, value in in_own_names([parse_assignment(override) for override in overrides], read_settings):
            _assign(tree, key, value)
        return cls.parse(tree)

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> Config:
        """Checks a tree of plain values. Raises ConfigError."""
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise ConfigError(_explain(error)) from error

    def dump(self) -> str:
        """The resolved settings as YAML; `Config.load` of it gives an equal Config."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


class _SettingsLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice, of which the first would be lost in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        names = [key.value for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if key.value in names[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
        return mapping


def read_settings(path: Path) -> dict[str, Any]:
    """The plain values of a YAML file of settings. Raises ConfigError."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _SettingsLoader)
    except OSError as error:
        raise ConfigError(f"cannot read settings {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise ConfigError(f"{path}{line} is not YAML: {getattr(error, 'problem', error)}") from error
    except ValueError as error:  # bytes that are no UTF-8, a date that is none
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must hold settings as `key: value` lines")
    return tree


def parse_assignment(override: str) -> tuple[str, Any]:
    """The key and the value of `key.path=value`, whose value is YAML. Raises ConfigError."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"override {override!r} must be key.path=value")
    try:
        return key, yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"override {override!r}: the value is not YAML") from error


def _assign(tree: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        child = tree.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override of {key!r}: {parent} is a single value, not a section")
        tree = child
    if not parents and isinstance(value, dict) and isinstance(tree.get(last), dict):
        raise ConfigError(f"override of {key!r} would replace the whole section: pass {key}.NAME=VALUE")
    tree[last] = value


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        siblings = _fields_at(first["loc"][:-1]) + (list(ALIASES) if len(first["loc"]) == 1 else [])
        hint = did_you_mean(str(first["loc"][-1]), siblings, f"known here: {', '.join(_fields_at(first['loc'][:-1]))}")
        return f"unknown setting {key!r}: {hint}"
    if first["type"] == "missing" and not isinstance(first["loc"][-1], int):
        return f"setting {key!r} is missing: add it to the settings file or pass {key}=VALUE"
    message = first["msg"].removeprefix("Value error, ")
    if not key:
        return message
    if first["type"] == "value_error":
        return f"{key}: {message}"
    if first["type"] == "model_type":
        return f"{key} is a section: write its settings below it, or pass {key}.NAME=VALUE"
    return f"setting {key}={first['input']!r}: {message}"


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Config
    for part in location:
        model = model.model_fields[str(part)].annotation
    return list(model.model_fields)
