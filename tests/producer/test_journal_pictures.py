"""Pictures on their way into the buffer: put before the commit that names them, once for all who show them, and again
where Redis lost them."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import picture_env
import pytest
import redis.asyncio
from picture_play import says
from PIL import Image
from rollouts import generation

from stream_rl.buffer import LeasedSample, SampleStart, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.errors import ImageError
from stream_rl.multimodal import Encoded, Picture
from stream_rl.producer.journal import BufferJournal
from stream_rl.producer.samples import rebuild
from stream_rl.producer.turn_loop import Episode
from stream_rl.sample import Turn, WeightVersion

GROUP = 8
TURNS = 20


def start(pictures: list[Picture]) -> SampleStart:
    shown = Encoded(np.array([3, 7], np.int32), pictures)
    return SampleStart("go", shown.tokens, images=shown.names, image_tokens=shown.image_tokens)


def turn(index: int, picture: Picture) -> Turn:
    part = generation([7, 4], "stop", WeightVersion(0))
    return Turn(
        index,
        part.tokens,
        part.log_probs,
        np.array([5], np.int32),
        part.spans,
        images=(picture.name,),
        image_tokens=(1,),
    )


async def leased(open_buffer: Callable[[Config], Any], config: Callable[..., Config]) -> tuple[TrajectoryBuffer, Any]:
    buffer = await open_buffer(config(**{"rollout.group_size": GROUP, "rollout.groups_per_step": 1}))
    return buffer, await buffer.lease("p", GROUP)


def journal_of(buffer: TrajectoryBuffer, sample: LeasedSample) -> BufferJournal:
    return BufferJournal(buffer, sample, "pictures-test")


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_groups_prompt_images_are_shipped_and_kept_once(open_buffer, config, server, at_once):
    """Whether siblings begin one after the other or, as a producer has them, together."""
    prompt = [Picture.of(os.urandom(200_000), 3) for _ in range(4)]
    buffer, samples = await leased(open_buffer, config)
    client = redis.asyncio.from_url(server.url)
    assert len(samples) == GROUP

    async def received() -> int:
        return int((await client.info("stats"))["total_net_input_bytes"])

    before = await received()
    commits = [journal_of(buffer, sample).commit([start(prompt)], None, prompt) for sample in samples]
    if at_once:
        await asyncio.gather(*commits)
    else:
        for commit in commits:
            await commit
    shipped = await received() - before
    images = [key async for key in client.scan_iter(match="*image:*", count=10_000)]
    kept = sum([await client.strlen(key) for key in images if key.decode().endswith(tuple(p.name for p in prompt))])
    await client.aclose()

    one_copy = sum(len(picture.data) for picture in prompt)
    assert kept == one_copy
    assert one_copy <= shipped < 1.2 * one_copy


async def test_what_a_commit_ships_does_not_grow_with_the_pictures_before(seeing, open_buffer, server, monkeypatch):
    """In 20 turns each ships its own picture and delta, and as many bytes besides at the end as at the beginning."""
    size = 3 * 96 * 96

    def picture(_args: Any, _seed: str, turn: int) -> list[Image.Image]:
        return [Image.frombytes("RGB", (96, 96), random.Random(str(turn)).randbytes(size))]

    monkeypatch.setattr(picture_env, "pictures", picture)
    rollout = seeing(**{
        "rollout.max_turns": TURNS, "rollout.groups_per_step": 1, "rollout.max_response_len": 2048,
        "rollout.max_context_len": 2048,
    })  # fmt: skip
    buffer = await open_buffer(rollout.config)
    leased, _ = await buffer.lease("p", 2)
    client, shipped = redis.asyncio.from_url(server.url), []
    journal = journal_of(buffer, leased)
    commit = journal.commit

    async def measured(records: Any, outcome: Any = None, pictures: Any = ()) -> None:
        before = int((await client.info("stats"))["total_net_input_bytes"])
        await commit(records, outcome, pictures)
        after = int((await client.info("stats"))["total_net_input_bytes"])
        shipped.append(after - before - sum(len(picture.data) for picture in pictures))

    monkeypatch.setattr(journal, "commit", measured)
    sample, row = rebuild(leased, rollout)
    await Episode(rollout, says(*["up"] * TURNS), journal, sample, row).run()
    await client.aclose()

    assert (sample.next_turn, len(set(sample.images))) == (TURNS, TURNS)
    middle = shipped[1:-1]
    assert max(middle) < 1.1 * min(middle) < 0.2 * size


async def test_an_image_that_redis_lost_is_put_again(open_buffer, config, server):
    """A Redis that lost its newest writes has neither the image nor the record that names it."""
    buffer, (sample, *_) = await leased(open_buffer, config)
    journal, first, second = journal_of(buffer, sample), Picture.of(b"first", 1), Picture.of(b"second", 1)
    await journal.commit([start([]), turn(0, first)], None, [first])
    put, calls = buffer.put_images, []

    async def forgetful(images: Any) -> Any:
        calls.append(list(images))
        return await put(calls[-1]) if len(calls) > 1 else ()

    buffer.put_images = forgetful
    await journal.commit([turn(1, second)], None, [second])

    assert [len(images) for images in calls] == [1, 1]
    await buffer.release([journal.lease])
    found = await buffer.lease("p", GROUP)
    (again,) = [one for one in found if one.lease.sample_id == sample.lease.sample_id]
    assert await journal_of(buffer, again).pictures([first.name, second.name], {}) == {
        first.name: b"first",
        second.name: b"second",
    }


async def test_the_same_image_twice_in_one_turn_is_kept_once(open_buffer, config):
    buffer, (sample, *_) = await leased(open_buffer, config)
    journal, picture = journal_of(buffer, sample), Picture.of(b"twice", 1)
    twice = replace(turn(0, picture), images=(picture.name,) * 2, image_tokens=(1, 1))

    await journal.commit([start([]), twice], None, [picture, picture])

    await buffer.release([journal.lease])
    again = next(one for one in await buffer.lease("p", GROUP) if one.lease.sample_id == sample.lease.sample_id)
    assert again.turns[0].images == twice.images
    assert await journal_of(buffer, again).pictures(twice.images, {}) == {picture.name: b"twice"}


async def test_a_sample_whose_image_is_gone_cannot_go_on_and_says_so(open_buffer, config):
    buffer, (sample, *_) = await leased(open_buffer, config)

    with pytest.raises(ImageError, match=r"sample 0-0 cannot be resumed: image 0{32} is not in the buffer"):
        await journal_of(buffer, sample).pictures(["0" * 32], {})


async def test_images_are_there_before_anything_names_them(open_buffer, config):
    buffer, (sample, *_) = await leased(open_buffer, config)
    order: list[str] = []
    for name in ("put_images", "commit"):
        call = getattr(buffer, name)

        async def noted(*given: Any, name: str = name, call: Any = call) -> Any:
            order.append(name)
            return await call(*given)

        setattr(buffer, name, noted)
    picture = Picture.of(b"new", 1)

    await journal_of(buffer, sample).commit([start([picture])], None, [picture])

    assert order == ["put_images", "commit"]
