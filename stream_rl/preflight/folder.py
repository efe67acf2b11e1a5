"""The run folder: a new run needs one of its own, and a resumed run needs the one that it was begun in."""

from __future__ import annotations

import os
from pathlib import Path

from stream_rl.config import Config
from stream_rl.errors import ConfigError
from stream_rl.run_lock import run_lock

__all__ = ["check_folder"]

OTHER = "name another folder"


def check_folder(config: Config, resume: bool) -> None:
    """The folder must fit the start, be writable, and belong to no run that is running. Raises ConfigError."""
    folder = config.folder
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"run={config.run} is a file: name a folder")
        begun = (folder / "config.yaml").exists()
        used = folder.exists() and any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"run={config.run} cannot be used ({error.strerror}): {OTHER}") from error
    if resume and not begun:
        raise ConfigError(f"run={config.run} holds no run to go on with: leave out --resume, or name the run's folder")
    if begun and not resume:
        raise ConfigError(f"run={config.run} holds a run already: pass --resume to go on with it, or {OTHER}")
    if used and not resume:
        raise ConfigError(f"run={config.run} holds files that are no run's: {OTHER}")
    _check_writable(config)
    if resume:
        check_same_run(config)
        _check_trajectories(config)
        with run_lock(folder):
            pass


def check_same_run(config: Config) -> None:
    """What the run's samples and weights rest on must be as it was begun. Raises ConfigError."""
    path = config.folder / "config.yaml"
    try:
        begun = Config.load(path)
    except ConfigError as error:
        raise ConfigError(f"the settings in {path} cannot be read, {error}") from error
    settled = {
        "seed": (config.seed, begun.seed),
        "rollout.groups_per_step": (config.rollout.groups_per_step, begun.rollout.groups_per_step),
        "rollout.group_size": (config.rollout.group_size, begun.rollout.group_size),
        "data.prompt_field": (config.data.prompt_field, begun.data.prompt_field),
        "data.split": (config.data.split, begun.data.split),
        "data.subset": (config.data.subset, begun.data.subset),
        "data.shuffle": (config.data.shuffle, begun.data.shuffle),
        "environment.path": (config.environment.path, begun.environment.path),
        "rollout.agent": (config.rollout.agent, begun.rollout.agent),
        "model.path": (os.path.realpath(config.model.path), os.path.realpath(begun.model.path)),
    }
    for setting, (now, before) in settled.items():
        if now != before:
            raise ConfigError(
                f"{setting}={now}, but the run in {config.run} was begun with {before}: "
                "set it back, or start a new run in another folder"
            )


def _check_trajectories(config: Config) -> None:
    """Checkpoints replay what the ledger after them says: without the buffer they cannot go on."""
    folder = config.folder
    if config.buffer.url is None and any(folder.glob("checkpoints/step-*")) and not (folder / "buffer").exists():
        raise ConfigError(
            f"run={config.run} has checkpoints, but its trajectories (buffer/) were purged: start a new run in another "
            "folder"
        )


def _check_writable(config: Config) -> None:
    folder = config.folder.absolute()
    existing: Path = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"run={config.run} cannot be written, {existing} is no folder that you may write: {OTHER}")
