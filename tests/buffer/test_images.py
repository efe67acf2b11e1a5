"""Images are stored once under their hash, before the turn that names them, and go with the last group that does."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from journal_builders import START, outcome, turn

from stream_rl.buffer import LeasedSample, TrajectoryBuffer
from stream_rl.errors import BufferFull, CorruptRecord, ImageMissing
from stream_rl.sample import LARGEST_IMAGE, LedgerEntry, image_name

RED, BLUE = b"red pixels", b"blue pixels"


async def look(buffer: TrajectoryBuffer, sample: LeasedSample, *names: str) -> None:
    """One turn that shows these images, and the end."""
    await buffer.commit(sample.lease, 0, [START, replace(turn(0), images=names)], outcome())


async def test_an_image_comes_back_by_its_name(buffer: TrajectoryBuffer) -> None:
    names = await buffer.put_images([RED, BLUE, RED])
    assert names == (image_name(RED), image_name(BLUE), image_name(RED))
    assert await buffer.load_images([*names]) == {names[0]: RED, names[1]: BLUE}
    assert await buffer.load_images([]) == {}
    with pytest.raises(CorruptRecord, match="image abc is not in the buffer"):
        await buffer.load_images(["abc"])
    with pytest.raises(ValueError, match="an image of"):
        await buffer.put_images([bytes(LARGEST_IMAGE + 1)])


async def received(buffer: TrajectoryBuffer) -> int:
    """Bytes that the server has been sent by anybody."""
    (facts,) = await buffer._connection.pipeline(lambda pipe: pipe.info("stats"))
    return int(facts["total_net_input_bytes"])


async def test_only_new_bytes_are_sent(buffer: TrajectoryBuffer) -> None:
    image = bytes(200_000)
    await buffer.put_images([image])
    before = await received(buffer)
    for _ in range(8):
        await buffer.put_images([image])
    assert await received(buffer) - before < 20_000


async def test_what_is_on_its_way_is_waited_for_by_whoever_puts_it_too(buffer: TrajectoryBuffer) -> None:
    before = await received(buffer)
    images = [bytes([number]) * 100_000 for number in range(3)]
    first, second = await asyncio.gather(buffer.put_images(images[:2]), buffer.put_images(images[1:]))
    assert await received(buffer) - before < 320_000
    assert (first[1], len(await buffer.load_images([*first, *second]))) == (second[0], 3)


async def test_a_put_that_is_cancelled_is_not_so_for_others(buffer: TrajectoryBuffer) -> None:
    first = asyncio.create_task(buffer.put_images([RED]))
    await asyncio.sleep(0)
    second = asyncio.create_task(buffer.put_images([RED]))
    await asyncio.sleep(0)
    first.cancel()
    assert await buffer.load_images(await second) == {image_name(RED): RED}
    assert first.cancelled()


async def test_a_put_that_fails_fails_all_who_wait_and_the_next_tries_again(
    buffer: TrajectoryBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_: object) -> None:
        await asyncio.sleep(0.01)
        raise BufferFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(buffer._connection, "store", full)
        failed = await asyncio.gather(*(buffer.put_images([RED]) for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in failed] == [BufferFull] * 3
    assert await buffer.load_images(await buffer.put_images([RED])) == {image_name(RED): RED}


async def test_what_comes_for_several_comes_once_and_what_one_of_them_lacks_is_its_own_failure(
    buffer: TrajectoryBuffer,
) -> None:
    async def sent() -> int:
        (facts,) = await buffer._connection.pipeline(lambda pipe: pipe.info("stats"))
        return int(facts["total_net_output_bytes"])

    names = await buffer.put_images([bytes([number]) * 100_000 for number in range(3)])
    before = await sent()
    absent = image_name(RED)
    loads = [buffer.load_images(some) for some in (names[:2], [*names, absent], [absent], names[1:], names)]
    two, lacking, alone, others, three = await asyncio.gather(*loads, return_exceptions=True)
    assert await sent() - before < 320_000
    assert all(isinstance(one, CorruptRecord) and absent in str(one) for one in (lacking, alone))
    assert list(three) == list(names)  # type: ignore[arg-type]
    assert all(three[name] is (two | others)[name] for name in names)  # type: ignore[operator,index]
    assert not buffer._coming


async def test_the_largest_image_that_is_allowed_comes_back(buffer: TrajectoryBuffer) -> None:
    image = bytes(LARGEST_IMAGE)
    (name,) = await buffer.put_images([image])
    assert (await buffer.load_images([name]))[name] == image


async def test_a_turn_that_names_an_absent_image_is_refused_by_name(buffer: TrajectoryBuffer) -> None:
    first, _ = await buffer.lease("p", 2)
    (red,) = await buffer.put_images([RED])
    blue = image_name(BLUE)
    with pytest.raises(ImageMissing, match=f"sample 0-0 names images that are not in the buffer: {blue}") as caught:
        await look(buffer, first, red, blue)
    assert caught.value.names == (blue,)
    assert (await buffer.snapshot()).committed_turns == 0
    await buffer.put_images([BLUE])
    for _ in range(2):
        await look(buffer, first, red, blue)
    assert (await buffer.snapshot()).committed_turns == 1


async def test_an_image_goes_with_the_last_group_that_names_it(buffer: TrajectoryBuffer) -> None:
    claim = await buffer.claim_trainer()
    red, blue = await buffer.put_images([RED, BLUE])
    for step, shown in ((1, (red,)), (2, (red, blue))):
        for sample in await buffer.lease("p", 4):
            await look(buffer, sample, *shown)
        assert isinstance(await buffer.take_step(claim, step), LedgerEntry)
    (images,) = await buffer._connection.pipeline(lambda pipe: pipe.hgetall(buffer._connection.key("images")))
    assert images == {red.encode(): b"4", blue.encode(): b"2"}
    await buffer.checkpoints_kept(claim, 1)
    assert (await buffer.load_groups([2]))[0].samples[0].turns[0].images == (red, blue)
    assert len(await buffer.load_images([red, blue])) == 2
    await buffer.checkpoints_kept(claim, 2)
    for name in (red, blue):
        with pytest.raises(CorruptRecord):
            await buffer.load_images([name])


async def test_an_image_that_no_turn_names_expires_unless_it_is_put_again(buffer: TrajectoryBuffer) -> None:
    (sample, _), (red,) = await buffer.lease("p", 2), await buffer.put_images([RED])
    key = buffer._connection.key("image", red)
    await buffer._connection.pipeline(lambda pipe: pipe.expire(key, 5))
    await buffer.put_images([RED])
    (life,) = await buffer._connection.pipeline(lambda pipe: pipe.ttl(key))
    assert life > 60
    await look(buffer, sample, red)
    await buffer.put_images([RED])
    assert await buffer._connection.pipeline(lambda pipe: pipe.ttl(key)) == [-1]
