"""Which folders a run may start in, and which it may go on in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_rl.config import Config
from stream_rl.errors import ConfigError
from stream_rl.preflight.folder import check_folder
from stream_rl.run_lock import run_lock

Make = Callable[..., Config]


def begin(config: Config) -> None:
    config.folder.mkdir()
    (config.folder / "config.yaml").write_text(config.dump())


def refusal(config: Config, *, resume: bool) -> str:
    with pytest.raises(ConfigError) as caught:
        check_folder(config, resume)
    return str(caught.value)


def test_a_new_run_takes_an_absent_or_empty_folder_and_makes_nothing(config: Make) -> None:
    check_folder(config(), False)
    assert not config().folder.exists()
    config().folder.mkdir()
    check_folder(config(), False)
    assert not any(config().folder.iterdir())


def test_a_folder_in_use_is_not_taken(config: Make, tmp_path: Path) -> None:
    begin(config())
    assert refusal(config(), resume=False).endswith("pass --resume to go on with it, or name another folder")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    assert "holds files that are no run's" in refusal(config(run=str(tmp_path / "other")), resume=False)


def test_there_must_be_a_run_to_resume(config: Make) -> None:
    assert "holds no run to go on with: leave out --resume" in refusal(config(), resume=True)
    config().folder.mkdir()
    assert "holds no run to go on with: leave out --resume" in refusal(config(), resume=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rollout": {"group_size": 4}}, "rollout.group_size=4, but the run in "),
        ({"rollout": {"groups_per_step": 4}}, "rollout.groups_per_step=4, but the run in "),
        ({"seed": 4}, "seed=4, but the run in "),
        ({"data": {"shuffle": False}}, "data.shuffle=False, but the run in "),
        ({"data": {"split": "dev"}}, "data.split=dev, but the run in "),
        ({"environment": {"path": "arithmetic"}}, "environment.path=arithmetic, but the run in "),
        ({"model": {"path": "another"}}, "/another, but the run in "),
    ],
)
def test_a_run_goes_on_as_it_was_begun(config: Make, changed: dict[str, object], message: str) -> None:
    begin(config())
    assert message in refusal(config(**changed), resume=True)


def test_a_run_may_go_on_with_more_steps_and_a_model_under_another_path(config: Make, tiny_model: Path) -> None:
    begin(config())
    check_folder(config(trainer={"steps": 999}, model={"path": os.path.relpath(tiny_model)}), True)


def test_a_run_whose_trajectories_were_purged_does_not_go_on(config: Make) -> None:
    begin(config())
    check_folder(config(), True)
    (config().folder / "checkpoints" / "step-000020").mkdir(parents=True)
    assert "its trajectories (buffer/) were purged" in refusal(config(), resume=True)
    (config().folder / "buffer").mkdir()
    check_folder(config(), True)


def test_settings_that_were_damaged_are_named_by_their_file(config: Make) -> None:
    begin(config())
    (config().folder / "config.yaml").write_text("run: a\n")
    assert refusal(config(), resume=True).startswith(f"the settings in {config().folder}/config.yaml cannot be read")


def test_a_run_that_is_running_is_left_alone(config: Make) -> None:
    begin(config())
    with run_lock(config().folder):
        assert "is running now: stop that process first" in refusal(config(), resume=True)
    check_folder(config(), True)


@pytest.mark.parametrize("run", ["/dev/null/run", "/dev/null/a/run"])
def test_a_folder_that_cannot_be_made_is_refused(config: Make, run: str) -> None:
    assert refusal(config(run=run), resume=False).startswith(f"run={run} cannot be written, /dev/null is no folder")


def test_a_folder_that_may_not_be_written_is_refused(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write anywhere
    assert "cannot be written" in refusal(config(), resume=False)


def test_a_name_that_is_too_long_is_refused(config: Make) -> None:
    assert "File name too long" in refusal(config(run="a" * 300), resume=False)
