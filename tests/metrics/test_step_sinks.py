"""The steps' figures as others read them: TensorBoard by its own reader, Weights & Biases by a double of its module."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from run_folders import config, step_record
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from stream_rl.errors import ConfigError
from stream_rl.metrics.step_sinks import TensorBoardSteps, figures, step_sinks


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    steps = [step_record(step, random) for step in (1, 2, 300)]
    sink = TensorBoardSteps(tmp_path)
    for step in steps:
        sink.write(step)
    sink.close()
    (path,) = tmp_path.iterdir()

    version, *events = EventFileLoader(str(path)).Load()

    assert version.file_version == "brain.Event:2"
    assert [event.step for event in events] == [1, 2, 300]
    assert [event.wall_time for event in events] == [step["time"] for step in steps]
    for event, step in zip(events, steps, strict=True):
        read = {value.tag: value.tensor.float_val[0] for value in event.summary.value}
        assert read == pytest.approx(figures(step), rel=1e-6)
        assert {"reward_mean", "by_lag/0/tokens", "wait_reasons/lag_rule"} <= read.keys()


def test_only_numbers_are_figures() -> None:
    step = {"step": 3, "time": 1.0, "version": "3", "groups": [1], "replayed": False, "loss": None, "reward_mean": 0.5}
    assert figures(step) == {"reward_mean": 0.5}


def test_a_run_that_asks_for_none_has_none(tmp_path: Path) -> None:
    assert step_sinks(config(tmp_path)) == []


def with_wandb(folder: Path) -> Any:
    asked = config(folder)
    return asked.model_copy(update={"metrics": asked.metrics.model_copy(update={"wandb_project": "p"})})


def test_wandb_goes_on_under_the_runs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    run = SimpleNamespace(log=lambda row, step: logged.append((step, row)), finish=lambda: logged.append("end"))
    module = SimpleNamespace(init=lambda **how: logged.append(how) or run)
    monkeypatch.setitem(sys.modules, "wandb", module)
    (sink,) = step_sinks(with_wandb(tmp_path / "mine"))
    sink.write({"step": 4, "time": 0.0, "reward_mean": 0.5})
    sink.close()
    how, row, end = logged
    assert (how["project"], how["id"], how["resume"]) == ("p", "mine", "allow")
    assert (row, end) == ((4, {"reward_mean": 0.5}), "end")


def test_wandb_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"metrics\.wandb_project='p' needs the package wandb"):
        step_sinks(with_wandb(tmp_path))
