"""The whole trainer process against a real buffer: steps, the ledger, deaths, drains, joining engines."""

from __future__ import annotations

import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from trainer_runs import Run, retrain
from transformers import AutoModelForCausalLM, AutoTokenizer

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.config_sections import SchedulingConfig
from stream_rl.consumer.checkpoint import Checkpoints
from stream_rl.consumer.publication import Publication
from stream_rl.consumer.trainer import run_trainer
from stream_rl.errors import ConfigError, DataError, RecordsLost, TrainerSuperseded
from stream_rl.sample import Group, WeightVersion

DEADLINE = 120.0


class Death(Exception):
    """The trainer's process ends here."""


@pytest.fixture
def run(config: Config, buffer_url: str) -> Run:
    """A small run that nobody has trained yet."""
    opened = Run(config, buffer_url)
    opened.open()
    return opened


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> dict[int, Group]:
    """Every group that a trainer read, by its number."""
    groups: dict[int, Group] = {}
    load_groups = TrajectoryBuffer.load_groups

    async def recording(self: TrajectoryBuffer, wanted: Any, *ahead: Any) -> list[Group]:
        found = await load_groups(self, wanted, *ahead)
        groups.update({group.index: group for group in found})
        return found

    monkeypatch.setattr(TrajectoryBuffer, "load_groups", recording)
    return groups


def die_before(monkeypatch: pytest.MonkeyPatch, *steps: int) -> list[WeightVersion]:
    """Each time one of `steps` is to be published the trainer dies, once; the versions published otherwise."""
    left, published = set(steps), []
    publish, save = Publication.publish, Checkpoints.save

    def at_once(self: Checkpoints, *state: Any) -> None:
        # Which checkpoint is whole at a death must not depend on how fast it is written.
        save(self, *state)
        assert self._writing is not None
        self._writing.result(DEADLINE)

    def fatal(self: Publication, version: WeightVersion) -> None:
        if version.step in left:
            left.remove(version.step)
            raise Death
        published.append(version)
        publish(self, version)

    monkeypatch.setattr(Publication, "publish", fatal)
    monkeypatch.setattr(Checkpoints, "save", at_once)
    return published


def test_a_run_trains_publishes_and_exports(run: Run) -> None:
    with run.rollouts() as rollouts:
        run.train()
    lines = run.lines()
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert not any(line["replayed"] for line in lines)
    assert all(line["trained_tokens"] + line["masked_tokens"] == line["generated_tokens"] > 0 for line in lines)
    assert all(line["trained_token_lag_max"] <= 2 and line["group_lag_max"] <= 3 for line in lines)
    parts = [[line[f"{part}_seconds"] for part in ("transfer", "pause", "update", "publish")] for line in lines]
    assert all(0 < transfer < pause < update < publish for transfer, pause, update, publish in parts)
    updates = [body["weight_version"] for path, body in rollouts.engine.calls if path == "/update_weights_from_disk"]
    assert updates == [str(step) for step in range(7)]
    assert [path.name for path in (run.config.folder / "weights").iterdir() if path.name != ".static"] == ["6"]
    checkpoints = {path.name for path in (run.config.folder / "checkpoints").iterdir()}
    assert checkpoints == {"hf", "step-000004", "step-000006"}
    assert AutoTokenizer.from_pretrained(run.config.folder / "checkpoints" / "hf").encode("guess 7")
    exported = AutoModelForCausalLM.from_pretrained(run.config.folder / "checkpoints" / "hf").state_dict()
    for name, value in load_file(run.config.folder / "weights" / "6" / "model.safetensors").items():
        torch.testing.assert_close(value, exported[name], atol=0, rtol=0)
    after = run.snapshot()
    assert (after.trained, after.ledger_steps, after.state) == (12, 6, "finished")


def test_without_staleness_every_sample_is_written_by_the_version_that_it_is_trained_from(
    config: Config, buffer_url: str, loaded: dict[int, Group]
) -> None:
    scheduling = SchedulingConfig.model_validate({"max_staleness": 0})
    run = Run(config.model_copy(update={"scheduling": scheduling}), buffer_url)
    run.open()
    with run.rollouts():
        run.train()
    lines = run.lines()
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert max(line["trained_token_lag_max"] for line in lines) == max(line["group_lag_max"] for line in lines) == 0
    assert all(line["trained_tokens"] == line["generated_tokens"] > 0 == line["masked_tokens"] for line in lines)
    for line in lines:
        samples = [sample for number in line["groups"] for sample in loaded[number].samples]
        assert len(samples) == 8
        written = {span.version for sample in samples for turn in sample.turns for span in turn.spans}
        assert written == {WeightVersion(line["step"] - 1)}


def test_deaths_change_nothing_in_the_weights(
    run: Run, loaded: dict[int, Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = die_before(monkeypatch, 1, 4, 5)
    with run.rollouts():
        for _ in range(3):
            with pytest.raises(Death):
                run.train()
        run.train()
    expected = ["0", "1.1", "2.1", "3.1", "4.2", "5.3", "6.3"]
    assert list(map(str, published)) == expected
    lines = run.lines()
    assert [line["step"] for line in lines] == [1, 2, 3, 3, 4, 5, 6]
    assert [line["step"] for line in lines if line["replayed"]] == [1, 3, 4, 5]
    last = {line["step"]: line["groups"] for line in lines}
    assert lines[2]["groups"] == lines[3]["groups"]
    assert len({group for groups in last.values() for group in groups}) == 12
    weights = load_file(run.config.folder / "checkpoints" / "hf" / "model.safetensors")
    for name, value in retrain(run, loaded, tmp_path).items():
        torch.testing.assert_close(weights[name], value, atol=0, rtol=0)


def test_a_drained_trainer_checkpoints_and_the_next_goes_on(run: Run) -> None:
    run.ask(lambda buffer: buffer.drain_run())
    run.train()
    assert not run.lines()
    run.open()
    with run.rollouts():
        run.train()
    assert run.snapshot().trained == 12


def test_an_engine_that_fails_its_update_is_taken_off_and_served_when_it_joins_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = []
    engine_left = TrajectoryBuffer.engine_left

    async def rejoin(self: TrajectoryBuffer, engine_id: str) -> None:
        await engine_left(self, engine_id)
        left.append(engine_id)
        await self.engine_joined(engine_id, rollouts.engine.url, 1)

    monkeypatch.setattr(TrajectoryBuffer, "engine_left", rejoin)
    with run.rollouts() as rollouts:
        rollouts.engine.fail("/update_weights_from_disk", "500", "500", "500", "500", "500", "500")
        run.train()
    assert left
    assert set(left) == {"engine-0"}
    assert rollouts.engine.version == "6"
    assert not rollouts.engine.paused


def test_an_engine_may_take_as_long_for_its_update_as_the_settings_say(
    config: Config, buffer_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tree = config.model_dump()
    run = Run(Config.parse({**tree, "engine": {**tree["engine"], "update_timeout": 1.5}}), buffer_url)
    run.open()
    engine_left = TrajectoryBuffer.engine_left

    async def rejoin(self: TrajectoryBuffer, engine_id: str) -> None:
        await engine_left(self, engine_id)
        await self.engine_joined(engine_id, rollouts.engine.url, 1)

    monkeypatch.setattr(TrajectoryBuffer, "engine_left", rejoin)
    with run.rollouts() as rollouts:
        rollouts.engine.fail("/update_weights_from_disk", "hang")
        run.train()
    assert re.search(r"engine-0 did not take version 0: .* 1\.5 s", caplog.text)
    assert rollouts.engine.version == "6"


def test_a_step_whose_records_are_lost_before_they_are_read_is_taken_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_groups, asked = TrajectoryBuffer.load_groups, []

    async def losing(self: TrajectoryBuffer, wanted: list[int], *ahead: Any) -> list[Group]:
        asked.append(wanted)
        if len(asked) in (2, 3):
            raise RecordsLost("Redis came back without them")
        return await load_groups(self, wanted, *ahead)

    monkeypatch.setattr(TrajectoryBuffer, "load_groups", losing)
    with run.rollouts():
        run.train()
    assert asked[1] == asked[2] == asked[3]
    assert [line["step"] for line in run.lines()] == [1, 2, 3, 4, 5, 6]
    assert len({group for line in run.lines() for group in line["groups"]}) == run.snapshot().trained


def test_without_a_whole_checkpoint_the_run_ends_with_what_is_wrong_with_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_before(monkeypatch, 5)
    with run.rollouts():
        with pytest.raises(Death):
            run.train()
        for manifest in run.config.folder.glob("checkpoints/step-*/manifest.json"):
            manifest.unlink()
        with pytest.raises(DataError, match=r"is whole \(step-000004: manifest.*step-000002: manifest"):
            run.train()
    assert run.snapshot().ledger_steps == 5


def test_fewer_steps_than_the_run_has_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    die_before(monkeypatch, 5)
    with run.rollouts(), pytest.raises(Death):
        run.train()
    tree = run.config.model_dump()
    tree["trainer"]["steps"] = 3
    fewer = Run(Config.parse(tree), run.url, run.starts)
    with pytest.raises(ConfigError, match=r"trainer.steps=3 is less than the 5 steps that the run has"):
        fewer.train()


def test_a_newer_trainer_supersedes_this_one(run: Run) -> None:
    with run.rollouts(), pytest.MonkeyPatch.context() as patch:
        publish = Publication.publish

        def superseded(self: Publication, version: WeightVersion) -> None:
            publish(self, version)
            if version.step == 2:
                self._runner.run(self._buffer.claim_trainer())

        patch.setattr(Publication, "publish", superseded)
        with pytest.raises(TrainerSuperseded):
            run.train()
    assert run.snapshot().ledger_steps == 2


def test_two_ranks_train_a_run_to_its_end(run: Run) -> None:
    context = multiprocessing.get_context("spawn")
    place = {"world_size": 2, "init_method": f"file://{run.config.folder}-rendezvous", "buffer_url": run.url}
    with run.rollouts():
        ranks = [
            context.Process(target=run_trainer, args=(run.config,), kwargs={"rank": rank, **place}) for rank in (0, 1)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(DEADLINE)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    lines = run.lines()
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(line["trained_tokens"] > 0 and 0 <= line["reward_mean"] <= 1 for line in lines)
    assert run.snapshot().trained == 12
