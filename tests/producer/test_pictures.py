"""Images in every turn: encoded alone, committed with their tokens, sent along, resumed; and what is wrong, named."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import orjson
import picture_env
import pytest
from picture_play import END, ID, TURNS, placeholders, played, says
from rollouts import RecordingJournal, ScriptedEngines, play, resumed
from transformers import AutoProcessor

from stream_rl.buffer import codec
from stream_rl.buffer.records import SampleStart
from stream_rl.producer.journal import BufferJournal
from stream_rl.producer.prompts import PromptRow
from stream_rl.producer.samples import rebuild
from stream_rl.producer.turn_loop import Episode
from stream_rl.sample import Status, StopReason, image_name


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

    async def test_siblings_that_come_back_share_one_picture_which_is_read_once(self, seeing, open_buffer):
        """Whether they come back together, or one while another plays."""
        rollout = seeing(args={"images": 2})
        rules = rollout.config.rollout.model_copy(update={"groups_per_step": 1, "group_size": 4})
        rollout = replace(rollout, config=rollout.config.model_copy(update={"rollout": rules}))
        buffer = await open_buffer(rollout.config)
        read, load_images = [], buffer.load_images

        async def noted(names):
            read.extend(names)
            return await load_images(names)

        buffer.load_images = noted
        await asyncio.gather(*(self.first_turn(rollout, buffer, one) for one in await buffer.lease("p", 4)))
        again, shown = await buffer.lease("p", 4), {}
        assert all(len(one.turns) == 1 for one in again)

        async def come_back(one):
            sample, row = rebuild(one, rollout)
            journal, engines = BufferJournal(buffer, one, "pictures"), says("up", "up")
            episode = Episode(rollout, engines, journal, sample, row, begun=True)
            await episode.run()
            shown[one.lease.sample_id] = [*engines.images[0].data]
            return episode

        kept = await asyncio.gather(*map(come_back, again[:3]))
        read.clear()
        kept.append(await come_back(again[3]))

        first, *others = shown.values()
        assert len(first) == 4
        assert all(mine is its for other in others for mine, its in zip(first, other, strict=True))
        assert read == []

    async def first_turn(self, rollout, buffer, leased):
        """Plays until the first turn is committed, and gives the sample back."""
        journal = BufferJournal(buffer, leased, "pictures")
        sample, row = rebuild(leased, rollout)
        episode = Episode(rollout, says("up"), journal, sample, row)
        episode.interrupt()
        await episode._enter()
        await episode._turn()
        await buffer.release([journal.lease])

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


async def test_siblings_share_one_picture(seeing):
    """Read and compressed once: the pictures of a group's prompt are one object in memory."""
    rollout = seeing()
    row = rollout.prompts.row(0)
    first, second = [await rollout.show_prompt(replace(row)) for _ in range(2)]

    assert first.pictures[0] is second.pictures[0]
    assert first.pictures[0].sent is second.pictures[0].sent


class TestInvariant9:
    """Where placeholders and features differ, nothing of it is committed."""

    @pytest.mark.parametrize("turn", [-1, 1])
    async def test_an_image_whose_tokens_are_not_all_there(self, seeing, monkeypatch, turn):
        rollout, shown = seeing(), []
        expand = rollout.chat.eyes.expand

        def short(ids, pictures):
            shown.append(len(pictures))
            whole = expand(ids, pictures)
            return whole if len(shown) != turn + 2 else whole[whole != ID["<|image_pad|>"]]

        monkeypatch.setattr(rollout.chat.eyes, "expand", short)
        _, journal, _ = await played(rollout)

        assert journal.failure[0] is StopReason.ENV_FAILURE
        assert re.fullmatch(r"0 placeholder tokens for \d features of 1 images", journal.failure[1])
        assert len(journal.turns) == max(turn, 0)
        assert len(journal.kept) == turn + 1

    async def test_a_placeholder_in_the_ids_of_a_loop(self, seeing):
        rollout = seeing(**{"rollout.agent": "agent_loops:placing"})
        _, journal, engines = await played(rollout, row=PromptRow("where"))

        assert journal.failure == (StopReason.ENV_FAILURE, "1 placeholder tokens for 0 features of 0 images")
        assert (engines.requests, journal.records) == ([], [])
