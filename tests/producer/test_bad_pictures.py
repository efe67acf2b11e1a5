"""Pictures that cannot be shown fail their own sample by name, and no other."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import numpy as np
import orjson
import picture_env
import pytest
from picture_play import TURNS, placeholders, played, says
from PIL import Image
from rollouts import RecordingJournal, ScriptedEngines, halving, play

from stream_rl.buffer import Waiting
from stream_rl.errors import DataError, EnvironmentLoadError
from stream_rl.producer.loading import check_rollout
from stream_rl.producer.prompts import PromptRow
from stream_rl.producer.worker import Producer
from stream_rl.sample import StopReason


class TestBadImages:
    async def test_a_corrupt_one_fails_its_sample_by_name_and_keeps_what_was_committed(self, seeing):
        _, journal, _ = await played(seeing(args={"faults": "corrupt"}))

        reason, detail = journal.failure
        assert reason is StopReason.ENV_FAILURE
        assert "is damaged" in detail or "no known format" in detail
        assert len(journal.turns) == 1

    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            (b"", "an image of 0 bytes is of no known format"),
            ("/nowhere/red.png", "cannot be read: No such file"),
            ("https://example.org/red.png", "is not in multimodal.url_hosts"),
            ("http://[", "is no URL"),
            ("é" * 2000, "is no base64"),
            (np.zeros((4, 6)), "must be uint8 (h, w, 3)"),
            (np.zeros((2, 4, 6, 3), np.uint8), "must be uint8 (h, w, 3)"),
            (Image.new("I;16", (4, 4)), "mode 'I;16' cannot be shown"),
            (Image.new("RGB", (1, 10_000)), "the model's processor refuses an image of 1x10000 pixels"),
            (Image.new("RGB", (5000, 5000)), "larger than multimodal.max_pixels"),
            ({"path": None}, "cannot be read from a dict"),
            (None, "must be text or an image"),
            ([], "cannot be read from a list"),
        ],
        ids=lambda given: f"{given!a:.16}",
    )
    async def test_whatever_else_is_shown_fails_its_sample_by_name(self, seeing, monkeypatch, given, reason):
        rollout = seeing()
        monkeypatch.setattr(picture_env, "pictures", lambda *_: [given])

        _, journal, _ = await played(rollout, row=PromptRow("where", "0 0"))

        assert journal.failure[0] is StopReason.ENV_FAILURE
        assert reason in journal.failure[1]

    async def test_what_holds_no_images_shows_none_and_its_episode_goes_on(self, seeing):
        sample, journal, _ = await played(seeing(args={"images": 0}))

        assert (sample.images, sample.stop_reason, journal.failure) == ((), StopReason.MAX_TURNS, None)

    async def test_the_same_image_twice_is_shown_twice_and_travels_once(self, seeing, monkeypatch):
        rollout = seeing()
        monkeypatch.setattr(picture_env, "pictures", lambda *_: [picture_env.picture(0)] * 2)

        sample, journal, engines = await played(rollout, row=PromptRow("where", "0 0"))

        assert len(sample.images) == 2 * (TURNS - 1)
        assert len(set(sample.images)) == len(journal.kept) == 1
        assert placeholders(engines.requests[-1][0]) == sum(sample.image_tokens)

    @pytest.mark.parametrize(
        "form", [np.asarray, lambda image: image.convert("CMYK"), lambda image: image.convert("LA")]
    )
    async def test_arrays_and_other_modes_are_shown(self, seeing, monkeypatch, form):
        rollout = seeing()
        monkeypatch.setattr(picture_env, "pictures", lambda *_: [form(picture_env.picture(0))])

        sample, journal, _ = await played(rollout, row=PromptRow("where", "0 0"))

        assert (len(sample.images), journal.failure) == (TURNS - 1, None)

    async def test_a_prompts_image_too_fails_its_sample_alone(self, seeing):
        row = PromptRow([{"role": "user", "content": [{"type": "image", "image": b"none"}]}], "0 0")

        _, journal = await play(seeing(), says(), row=row)

        assert journal.failure[0] is StopReason.ENV_FAILURE
        assert "an image of 4 bytes is of no known format" in journal.failure[1]

    async def test_one_of_a_shape_that_the_processor_refuses(self, seeing, monkeypatch):
        monkeypatch.setattr(picture_env, "pictures", lambda *_: [Image.new("RGB", (900, 2))])

        _, journal, _ = await played(seeing())

        assert "the model's processor refuses an image of 900x2 pixels" in journal.failure[1]

    async def test_one_20000_pixels_wide_is_so_many_tokens_that_its_observation_is_left_out(self, seeing, monkeypatch):
        rollout = seeing()
        monkeypatch.setattr(picture_env, "pictures", lambda *_: [Image.new("RGB", (20_000, 128))])

        sample, journal, _ = await played(rollout, row=PromptRow("where", "0 0"))

        assert (sample.stop_reason, journal.failure) == (StopReason.MAX_RESPONSE_LEN, None)
        assert (sample.images, len(sample.turns), len(sample.turns[0].observation)) == ((), 1, 0)


SHOWN = [{"role": "user", "content": [{"type": "text", "text": "guess"}, {"type": "image", "image": "red.png"}]}]
REASON = r"has an image, and the model of model\.path reads text only"


class TestModelsThatReadText:
    """An image is found before the run where it can be, and fails its own sample elsewhere."""

    @pytest.fixture
    def sighted(self, rollout):
        """The guessing game, whose environment shows a picture first where the label is 8."""
        loaded = rollout(**{"environment.args": {"shown": 8}})
        build = loaded.environment.build_env

        def build_env(sample, args, **named):
            env = build(sample=sample, args=args, **named)
            if sample.label == args.shown:
                env.reset = lambda: ({"obs_str": "look", "multi_modal_data": {"image": [picture_env.picture(0)]}}, {})
            return env

        return replace(loaded, environment=replace(loaded.environment, build_env=build_env))

    async def test_in_a_first_observation_it_fails_its_sample_and_no_other(self, sighted):
        _, journal = await play(sighted, ScriptedEngines(halving), row=PromptRow("guess", 8))
        assert journal.failure[0] is StopReason.ENV_FAILURE
        assert re.search(rf"a message \('look'\) {REASON}", journal.failure[1])
        assert journal.records == []

        sample, journal = await play(sighted, ScriptedEngines(halving), row=PromptRow("guess", 5))
        assert (sample.reward, journal.failure) == (1.0, None)

    async def test_a_producer_that_meets_one_plays_on(self, sighted, open_buffer):
        """Its group is given up when its refills are spent, and others are trained."""
        rules = sighted.config.buffer.model_copy(update={"max_refills_per_group": 1})
        loaded = replace(sighted, config=sighted.config.model_copy(update={"buffer": rules}))
        labels = [loaded.prompts.row(index).label for index in range(8)]
        assert 8 in labels[:4], labels
        buffer = await open_buffer(loaded.config)
        stop, claim, trained = asyncio.Event(), await buffer.claim_trainer(), []
        playing = asyncio.create_task(Producer(loaded, buffer, ListedEngines(halving), "p").run(stop))
        async with asyncio.timeout(30):
            for step in (1, 2):
                while isinstance(entry := await buffer.take_step(claim, step), Waiting):
                    assert not playing.done(), playing.exception()
                    await asyncio.sleep(0.01)
                trained += [sample for group in await buffer.load_groups(entry.groups) for sample in group.samples]
        stop.set()
        await asyncio.wait_for(playing, 10)

        assert {sample.reward for sample in trained} == {1.0}
        assert 8 not in {sample.label for sample in trained}

    async def test_a_later_row_of_a_dataset_is_found_before_the_run(self, config, tmp_path):
        rows = [{"prompt": "guess", "label": 4}] * 40
        for name, row, field in [
            ("messages", {"prompt": SHOWN, "label": 4}, None),
            ("field", {"prompt": "guess", "label": 4, "images": ["red.png"]}, "images"),
        ]:
            path = tmp_path / f"{name}.jsonl"
            longer = [{"prompt": "guess " * 9, "label": 4}] * 20
            path.write_bytes(b"\n".join(map(orjson.dumps, [*longer, *rows, row, *rows])))
            settings = config(**{"data.path": str(path), "data.image_field": field, "data.shuffle": False})
            with pytest.raises(DataError, match=rf"^row 61 of data\.path: a message \('.*guess'\) {REASON}"):
                await check_rollout(settings)

    async def test_in_the_first_observation_of_all_it_is_found_before_the_run(self, config):
        settings = config(**{"environment.path": "picture_env", "environment.args": {"images": 0, "first": True}})
        with pytest.raises(EnvironmentLoadError, match=rf"environment\.path='picture_env' does not start: .* {REASON}"):
            await check_rollout(settings)

    async def test_a_sample_that_shows_some_is_not_gone_on_with(self, seeing, rollout):
        _, journal, _ = await played(seeing())
        left = RecordingJournal()
        left.records, left.kept = list(journal.records[:2]), journal.kept

        _, left = await play(rollout(), ScriptedEngines(halving), left, row=PromptRow("guess", 4))

        assert left.failure[0] is StopReason.ENV_FAILURE
        assert "shows images, and the model of model.path reads text only" in left.failure[1]


class ListedEngines(ScriptedEngines):
    """The script as a fleet."""

    engines: tuple[str, ...] = ()

    async def refresh(self, engines, confirmed=None):
        self.engines = tuple(name for name, _ in engines)

    async def abort(self, rid):
        pass
