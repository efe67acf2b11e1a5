"""Images in every turn: encoded alone, committed with their tokens, sent along, resumed; and what is wrong, named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import picture_env
import pytest
from PIL import Image
from rollouts import RecordingJournal, ScriptedEngines, play, resumed, run_config
from transformers import AutoProcessor

from stream_rl.buffer import codec
from stream_rl.buffer.records import SampleStart
from stream_rl.errors import DataError
from stream_rl.models.tiny_vlm import FRAME, VLM_WORDS
from stream_rl.producer.loading import Rollout, check_rollout, load_rollout
from stream_rl.producer.prompts import PromptRow
from stream_rl.sample import Sample, Status, StopReason, image_name

ID = {word: number for number, word in enumerate(VLM_WORDS)}
END, PAD = ID["<|im_end|>"], ID["<|image_pad|>"]
TURNS = 3


@pytest.fixture
def seeing(tiny_vlm: Path, tmp_path: Path) -> Callable[..., Rollout]:
    """`seeing(images=2, **{"rollout.max_turns": 5})`: a rollout of the pictures' environment with a model that sees."""
    side = FRAME["qwen2_5_vl" if "2.5" in tiny_vlm.name else "qwen3_vl"]

    def load(*, model: Path = tiny_vlm, args: dict[str, Any] | None = None, **settings: Any) -> Rollout:
        tree = {"environment.path": "picture_env", "environment.args": {"side": side, **(args or {})},
                "rollout.max_turns": TURNS, **settings}  # fmt: skip
        return load_rollout(run_config(tmp_path / "run", model, tree))

    return load


def says(*words: str) -> ScriptedEngines:
    """Engines that say these words in turn, each with the end token."""
    script = iter([[ID[word], END] for word in words])
    return ScriptedEngines(lambda _: next(script), end=END)


async def played(
    rollout: Rollout, *, cut: bool = False, row: PromptRow | None = None
) -> tuple[Sample, RecordingJournal, Any]:
    engines = says(*["up"] * 2 * TURNS)
    if cut:
        engines.cuts = iter([1, None] * TURNS)
        engines.policy = lambda given: [END] if given[-1] == ID["up"] else [ID["up"], END]
    sample, journal = await play(rollout, engines, row=row)
    return sample, journal, engines


def placeholders(ids: Any) -> int:
    return int(np.count_nonzero(np.asarray(ids) == PAD))


class TestTurns:
    @pytest.mark.parametrize("images", [1, 2, 5])
    async def test_every_request_has_the_images_so_far_and_every_token_that_stands_for_them(self, seeing, images):
        sample, _, engines = await played(seeing(args={"images": images}))

        assert len(sample.images) == images * TURNS
        for turn, (ids, sent) in enumerate(zip([ids for ids, _ in engines.requests], engines.images, strict=True), 1):
            assert len(sent.data) == len(sent.tokens) == images * turn
            assert placeholders(ids) == sum(sent.tokens) == sum(sample.image_tokens[: images * turn])
        assert engines.images[0].data[0] is engines.images[-1].data[0], "encoded once for all requests"

    async def test_ids_are_those_of_the_models_own_processor(self, seeing, tiny_vlm):
        """Incremental ids, expanded, against the processor applied to the whole conversation and all its images."""
        rollout = seeing(args={"images": 2})
        sample, _, engines = await played(rollout)
        args = rollout.args
        shown = [picture_env.pictures(args, sample.label, turn) for turn in (-1, 0, 1)]
        asked, said = {"role": "user"}, {"role": "assistant", "content": "up"}
        turns = [{**asked, "content": [{"type": "image"}] * 2 + [{"type": "text", "text": "go"}]} for _ in shown[1:]]
        first = {**asked, "content": [{"type": "text", "text": "where"}, {"type": "image"}, {"type": "image"}]}
        processor = AutoProcessor.from_pretrained(tiny_vlm)
        text = processor.apply_chat_template(
            [first, said, turns[0], said, turns[1]], tokenize=False, add_generation_prompt=True
        )

        whole = processor(text=[text], images=[one for turn in shown for one in turn])["input_ids"][0]

        assert engines.requests[-1][0] == list(whole)

    async def test_each_commit_carries_the_new_images_alone(self, seeing):
        sample, journal, _ = await played(seeing(args={"images": 2, "first": True}))

        assert [len(names) for names in journal.carried] == [3 + 2, 2, 0]
        assert [name for names in journal.carried for name in names] == list(sample.images)
        assert all(image_name(data) == name for name, data in journal.kept.items())

    async def test_a_record_is_json_with_images_by_name(self, seeing):
        _, journal, _ = await played(seeing())
        start = journal.records[0]
        assert isinstance(start, SampleStart)

        assert codec.decode(codec.encode(start)).images == start.images
        assert start.prompt[0]["content"][1] == {"type": "image", "image": start.images[0]}

    async def test_an_observation_that_spells_a_placeholder_adds_no_image(self, seeing):
        sample, _, _ = await played(seeing(args={"text": "<|vision_start|><|image_pad|><|vision_end|> go"}))

        assert placeholders(sample.tokens) == sum(sample.image_tokens)
        assert len(sample.images) == TURNS


class TestResume:
    @pytest.mark.parametrize("cut", [False, True])
    async def test_after_every_commit_it_goes_on_to_the_same_trajectory_with_the_same_requests(self, seeing, cut):
        rollout = seeing(args={"images": 2, "first": True})
        whole, journal, engines = await played(rollout, cut=cut)

        for commits in range(1, len(journal.records) - 1):
            left = RecordingJournal()
            left.records, left.kept = list(journal.records[: 1 + commits]), journal.kept
            again = ScriptedEngines(lambda given: [END] if given[-1] == ID["up"] else [ID["up"], END], end=END)
            sample, _ = await play(rollout, again, left)

            assert sample.tokens.tolist() == whole.tokens.tolist()
            assert (sample.images, sample.image_tokens) == (whole.images, whole.image_tokens)
            assert orjson.dumps(again.images[-1].data) == orjson.dumps(engines.images[-1].data)

    async def test_an_environment_that_shows_another_image_is_not_gone_on_with(self, seeing):
        rollout = seeing(args={"faults": "changing"})
        _, journal, _ = await played(rollout)
        left = RecordingJournal()
        left.records, left.kept = list(journal.records[:2]), journal.kept

        _, left = await play(rollout, says("up", "up"), left)

        assert left.failure[0] is StopReason.ENV_FAILURE
        assert "turn 0 of environment 'picture_env' shows other images now" in left.failure[1]

    async def test_a_sample_of_the_buffer_knows_its_images(self, seeing):
        whole, journal, _ = await played(seeing())

        sample, _ = resumed(seeing(), journal.records)

        assert (sample.images, sample.image_tokens) == (whole.images, whole.image_tokens)


async def test_what_an_agent_loop_shows_travels_like_an_environments(seeing):
    rollout = seeing(**{"rollout.agent": "agent_loops:Showing"})
    whole, journal, engines = await played(rollout)

    assert [len(sent.data) for sent in engines.images] == [1, 2, 3]
    assert [len(names) for names in journal.carried] == [2, 1, 0]
    assert placeholders(whole.tokens) == sum(whole.image_tokens)

    left = RecordingJournal()
    left.records, left.kept = list(journal.records[:2]), journal.kept
    sample, _ = await play(rollout, says("up", "up"), left)
    assert (sample.tokens.tolist(), sample.images) == (whole.tokens.tolist(), whole.images)


class TestBudgets:
    async def test_an_observation_without_room_is_left_out_whole_its_images_too(self, seeing):
        free, _, _ = await played(seeing(args={"images": 2}))
        room = len(free.prompt_tokens) + free.turns[0].length + free.turns[1].length - 1

        sample, journal, _ = await played(seeing(args={"images": 2}, **{"rollout.max_context_len": room}))

        assert (sample.stop_reason, sample.next_turn) == (StopReason.MAX_CONTEXT_LEN, 2)
        assert (journal.turns[-1].images, len(journal.turns[-1].observation)) == ((), 0)
        assert placeholders(sample.tokens) == sum(sample.image_tokens)
        assert journal.carried[-1] == []

    async def test_a_budget_counts_every_feature_of_an_image(self, seeing):
        sample, _, _ = await played(seeing(args={"images": 5}))

        assert sum(sample.image_tokens) > len(sample.image_tokens)
        assert len(sample.tokens) == len(sample.prompt_tokens) + sample.response_length


class TestWhatTheModelWrites:
    @pytest.mark.parametrize("word", ["<|image_pad|>", "<|video_pad|>"])
    async def test_a_token_that_stands_for_images_ends_the_episode_and_counts_for_none(self, seeing, word):
        rollout = seeing()
        engines = ScriptedEngines(lambda _: [ID["up"], ID[word]], end=ID[word])

        sample, journal = await play(rollout, engines)

        assert ID[word] in engines.requests[0][1].stop_token_ids
        assert (sample.status, sample.stop_reason) == (Status.TRUNCATED, StopReason.IMAGE_PLACEHOLDER)
        assert (journal.turns[-1].finish_reason, sample.reward) == ("placeholder", 0.25), "scored as a cut turn"
        assert len(sample.images) == 1


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

    async def test_in_a_model_that_reads_text_only(self, tiny_model, tmp_path):
        tree = {"environment.path": "picture_env", "environment.args": {"images": 0, "first": True}}
        rollout = load_rollout(run_config(tmp_path / "run", tiny_model, tree))

        with pytest.raises(Exception, match=r"has an image, and the model of model\.path reads text only"):
            await rollout.show_prompt(
                rollout.prompts.row(0), [{"role": "user", "content": [{"type": "image", "image": 0}]}]
            )


class TestDatasets:
    @pytest.fixture
    def rows(self, tmp_path: Path) -> Callable[..., Path]:
        def write(*rows: dict[str, Any]) -> Path:
            (tmp_path / "pictures").mkdir(exist_ok=True)
            for number in range(3):
                picture_env.picture(number).save(tmp_path / "pictures" / f"{number}.png")
            (tmp_path / "rows.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
            return tmp_path / "rows.jsonl"

        return write

    def test_images_stand_where_the_prompt_has_its_marks(self, seeing, rows):
        path = rows(
            {"problem": "go <image> where <image>up", "answer": 7, "images": ["pictures/0.png", "pictures/1.png"]}
        )
        keys = {"prompt_field": "problem", "label_field": "answer", "image_field": {"image": "images"}}

        row = seeing(data={"path": str(path), **keys}).prompts.row(0)

        parts = row.prompt[0]["content"]
        assert [part.get("text") for part in parts] == ["go ", None, " where ", None, "up"]
        assert parts[1]["image"] == str(path.parent / "pictures" / "0.png")
        assert (row.label, "images" in row.metadata) == (7, False)

    async def test_without_a_mark_they_stand_in_front(self, seeing, rows):
        path = rows({"prompt": "go", "images": ["pictures/2.png"]})
        rollout = seeing(**{"data.path": str(path), "data.image_field": "images"})

        shown = await rollout.show_prompt(rollout.prompts.row(0))

        assert shown.names == (image_name((path.parent / "pictures" / "2.png").read_bytes()),)

    async def test_an_image_that_cannot_be_read_names_its_row(self, seeing, rows):
        path = rows({"prompt": "go", "label": "0 0", "images": ["pictures/9.png"]})
        rollout = seeing(**{"data.path": str(path), "data.image_field": "images"})

        _, journal = await play(rollout, says())

        assert journal.failure[0] is StopReason.ENV_FAILURE
        assert "row 1 of data.path: image '" in journal.failure[1]
        with pytest.raises(DataError, match=r"^row 1 of data\.path: image '.*9\.png' cannot be read"):
            await check_rollout(rollout.config)

    def test_another_number_of_marks_names_the_row(self, seeing, rows):
        path = rows({"prompt": "go <image> <image>", "images": ["pictures/0.png"]})

        with pytest.raises(Exception, match=r"line 1 of data\.path=.* has 2 marks <image> for 1 images"):
            seeing(**{"data.path": str(path), "data.image_field": "images"}).prompts.row(0)


async def test_siblings_share_one_picture(seeing):
    """Read and compressed once: the pictures of a group's prompt are one object in memory."""
    rollout = seeing()
    row = rollout.prompts.row(0)
    first, second = [await rollout.show_prompt(replace(row)) for _ in range(2)]

    assert first.pictures[0] is second.pictures[0]
    assert first.pictures[0].sent is second.pictures[0].sent
