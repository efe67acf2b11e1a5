"""Checkpoints: whole or not there, newest first, and never of a history that the buffer lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter
from trajectories import ragged_groups

from stream_rl.config import ModelConfig, TrainerConfig
from stream_rl.consumer import checkpoint
from stream_rl.consumer.batching import flatten
from stream_rl.consumer.checkpoint import LEDGER, MANIFEST, Checkpoints
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.model import full_tensors
from stream_rl.consumer.update import Updater
from stream_rl.errors import ModelError, TrainingError

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_rank")


@pytest.fixture
def updater(model_path: Path) -> Updater:
    return Updater(load_policy(ModelConfig(path=str(model_path)), CPU), TrainerConfig(), CPU)


def save(checkpoints: Checkpoints, updater: Updater, *steps: int) -> int:
    """Saves steps; the weights of step n are all n."""
    oldest = None
    for step in steps:
        fill(updater, float(step))
        checkpoints.save(step, updater.policy, updater.optimizer)
        # What is trained meanwhile is not in it.
        fill(updater, -1.0)
        oldest = checkpoints.completed(wait=True)
    assert oldest is not None
    return oldest


def fill(updater: Updater, value: float) -> None:
    with torch.no_grad():
        for parameter in updater.policy.parameters():
            parameter.fill_(value)


def load(checkpoints: Checkpoints, updater: Updater, at_most: int = 100) -> tuple[int, float]:
    """The step that was loaded, and the weights' value."""
    step = checkpoints.load_newest(updater.policy, updater.optimizer, at_most=at_most)
    values = {float(value.flatten()[0]) for _, value in full_tensors(updater.policy, torch.float32)}
    assert len(values) == 1
    return step, values.pop()


def cut(folder: Path) -> None:
    shard = next(folder.glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])


def flip(folder: Path) -> None:
    shard = next(folder.glob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


def lose_a_shard(folder: Path) -> None:
    next(folder.glob("*.distcp")).unlink()


def lose_the_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def garble_the_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(b"{")


def empty_the_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(b"{}")


def list_no_sizes(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(b'{"files": {".metadata": null}}')


DAMAGES = (cut, flip, lose_a_shard, lose_the_manifest, garble_the_manifest, empty_the_manifest, list_no_sizes)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_checkpoint_is_skipped_with_a_warning(
    updater: Updater, tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, kept=3)
    save(checkpoints, updater, 2, 4)
    damage(tmp_path / "step-000004")
    with caplog.at_level(logging.WARNING, "stream_rl"):
        assert load(checkpoints, updater) == (2, 2.0)
    assert "step-000004 is broken and skipped" in caplog.text


def test_the_newest_whole_ledger_is_found_whatever_else_is_broken(updater: Updater, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, kept=3)
    assert checkpoints.ledger() == b"{}"
    for step in (1, 2):
        checkpoints.save(step, updater.policy, updater.optimizer, b'{"%d": "{}"}' % step)
        checkpoints.completed(wait=True)
    flip(tmp_path / "step-000002")
    assert checkpoints.ledger() == b'{"2": "{}"}'
    (tmp_path / "step-000002" / LEDGER).write_bytes(b'{"3": "{}"}')
    assert checkpoints.ledger() == b'{"1": "{}"}'


def test_the_newest_are_kept_and_the_oldest_kept_is_told(updater: Updater, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, kept=2)
    assert save(checkpoints, updater, 1) == 1
    assert save(checkpoints, updater, 2, 3) == 2
    assert checkpoints.steps() == [2, 3]
    assert load(checkpoints, updater) == (3, 3.0)


def test_a_checkpoint_beyond_the_ledger_is_removed(updater: Updater, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, kept=3)
    save(checkpoints, updater, 3, 5)
    assert load(checkpoints, updater, at_most=4) == (3, 3.0)
    assert checkpoints.steps() == [3]


def test_without_a_checkpoint_nothing_is_loaded(updater: Updater, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, kept=3)
    before = {name: value.clone() for name, value in full_tensors(updater.policy, torch.float32)}
    assert checkpoints.load_newest(updater.policy, updater.optimizer, at_most=9) == 0
    for name, value in full_tensors(updater.policy, torch.float32):
        torch.testing.assert_close(value, before[name], atol=0, rtol=0)


def test_what_an_interrupted_save_left_is_neither_found_nor_in_the_way(updater: Updater, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    (folder / ".partial-step-000002").mkdir(parents=True)
    (folder / ".partial-step-000002" / "half").write_bytes(b"half")
    checkpoints = Checkpoints(folder, kept=3)
    assert checkpoints.steps() == []
    save(checkpoints, updater, 2)
    assert [path.name for path in folder.iterdir()] == ["step-000002"]
    assert not (folder / "step-000002" / "half").exists()


def test_a_save_is_under_way_until_it_is_whole(
    updater: Updater, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_finish = threading.Event()
    publish = checkpoint.publish_folder

    def held(partial: Path, final: Path) -> None:
        assert may_finish.wait(60.0)
        publish(partial, final)

    monkeypatch.setattr(checkpoint, "publish_folder", held)
    checkpoints = Checkpoints(tmp_path, kept=3)
    checkpoints.save(2, updater.policy, updater.optimizer)
    assert checkpoints.completed() is None
    assert checkpoints.steps() == []
    may_finish.set()
    assert checkpoints.completed(wait=True) == 2
    assert checkpoints.completed() is None


@pytest.mark.parametrize(("owner", "writer"), [(checkpoint, "publish_folder"), (FileSystemWriter, "write_data")])
def test_what_keeps_a_checkpoint_from_being_written_is_told(
    updater: Updater, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, writer: str
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(owner, writer, full)
    checkpoints = Checkpoints(tmp_path, kept=3)
    checkpoints.save(2, updater.policy, updater.optimizer)
    with pytest.raises(TrainingError, match=r"could not be written to .* MiB are free: OSError: no space left"):
        checkpoints.completed(wait=True)


def test_what_a_person_put_beside_the_checkpoints_is_left_alone(updater: Updater, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder, kept=1)
    save(checkpoints, updater, 2)
    (folder / "step-000002-good").mkdir()
    (folder / "step-000009").write_bytes(b"a file")
    save(checkpoints, updater, 4)
    assert load(checkpoints, updater, at_most=4) == (4, 4.0)
    assert {path.name for path in folder.iterdir()} == {"step-000002-good", "step-000004", "step-000009"}


def test_a_checkpoint_of_another_model_is_refused_by_name(model_path: Path, updater: Updater, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, kept=1)
    save(checkpoints, frozen(model_path), 2)
    with pytest.raises(ModelError, match=r"step-000002 does not load into model.path with .*embed_tokens"):
        load(checkpoints, updater)


def frozen(model_path: Path) -> Updater:
    settings = TrainerConfig(frozen=["*embed_tokens*"])
    return Updater(load_policy(ModelConfig(path=str(model_path)), CPU, settings), settings, CPU)


def test_a_resume_goes_on_with_the_settings_that_it_was_given(
    model_path: Path, updater: Updater, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path, kept=1)
    save(checkpoints, updater, 2)
    given = TrainerConfig(betas=(0.5, 0.6), weight_decay=0.1, learning_rate=0.3)
    resumed = Updater(load_policy(ModelConfig(path=str(model_path)), CPU), given, CPU)
    checkpoints.load_newest(resumed.policy, resumed.optimizer, at_most=2)
    resumed.step([flatten(ragged_groups(1), trainer_version=9, max_staleness=9)], 3)
    (group,) = resumed.optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.3, (0.5, 0.6), 0.1)
