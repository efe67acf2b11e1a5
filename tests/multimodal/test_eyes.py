"""Conversations with images: bare messages for the template, pictures for everything else, each read once."""

from __future__ import annotations

import asyncio
import gc
import os

import numpy as np
import pytest
from PIL import Image

from stream_rl.config import MultimodalConfig
from stream_rl.errors import ImageError
from stream_rl.multimodal import Picture, eyes
from stream_rl.multimodal.eyes import Eyes
from stream_rl.sample import image_name

PLACEHOLDER = 9


class Squares:
    """A family whose images have a feature for each square of two pixels."""

    placeholder = PLACEHOLDER
    forbidden = (PLACEHOLDER,)

    def tokens_of(self, height: int, width: int) -> int:
        return (height // 2) * (width // 2)


@pytest.fixture
def sight() -> Eyes:
    return Eyes(Squares(), MultimodalConfig())


@pytest.fixture
def reads(monkeypatch) -> list[object]:
    """What was really read."""
    found: list[object] = []
    read = eyes.read_image
    monkeypatch.setattr(eyes, "read_image", lambda given, settings: found.append(given) or read(given, settings))
    return found


def image(width: int = 2, height: int = 2, colour: str = "red") -> Image.Image:
    return Image.new("RGB", (width, height), colour)


def user(*parts: object) -> dict[str, object]:
    content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p} for p in parts]
    return {"role": "user", "content": content}


def picture(tokens: int) -> Picture:
    return Picture(b"", tokens, "")


class TestReading:
    async def test_images_leave_the_messages_and_keep_their_order(self, sight):
        messages = [{"role": "system", "content": "s"}, user("a", image(4, 4), image(2, 6)), user(image(2, 2), "b")]

        bare, pictures = await sight.read(messages)

        assert [p.tokens for p in pictures] == [4, 3, 1]
        assert bare[1]["content"] == [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "image"}]
        assert bare[0] is messages[0]

    async def test_messages_without_images_are_handed_on(self, sight):
        messages = [user("a"), {"role": "user", "content": "b"}]

        assert (await sight.read(messages))[0] is messages

    @pytest.mark.parametrize(
        "part", [{"type": "image_url", "image_url": {"url": "F"}}, {"type": "image", "image": "F"}]
    )
    async def test_other_ways_to_write_an_image_part(self, sight, tmp_path, part):
        image().save(tmp_path / "f.png")
        key = part["type"]
        value = {"url": str(tmp_path / "f.png")} if key == "image_url" else str(tmp_path / "f.png")

        bare, pictures = await sight.read([{"role": "user", "content": [{**part, key: value}]}])

        assert (len(pictures), bare[0]["content"]) == (1, [{"type": "image"}])

    @pytest.mark.parametrize("part", [{"type": "image"}, {"type": "video", "video": "v.mp4"}, {"type": "image_url"}])
    async def test_what_is_no_image_is_refused(self, sight, part):
        with pytest.raises(ImageError, match="must be text or an image"):
            await sight.read([{"role": "user", "content": [part]}])

    async def test_what_cannot_be_read_is_an_image_error_whatever_it_is(self, sight):
        closed = image()
        closed.close()
        for given in (closed, "\ud800" * 2000, "é" * 2000, b"", {"bytes": np.zeros(3)}, {"bytes": None, "path": 7}):
            with pytest.raises(ImageError):
                await sight.picture(given)

    async def test_the_same_image_twice_is_two_images_of_one_name(self, sight):
        ((one, other),) = [(await sight.read([user(image(), "a", image())]))[1]]

        assert one is other

    async def test_a_picture_has_the_name_that_the_buffer_gives_it(self, sight):
        (found,) = (await sight.read([user(image())]))[1]

        assert found.name == image_name(found.data)


class TestMemory:
    async def test_equal_images_are_read_and_compressed_once(self, sight, reads, tmp_path):
        image().save(tmp_path / "f.png")
        data = (tmp_path / "f.png").read_bytes()
        forms = [image(), np.asarray(image()), data, str(tmp_path / "f.png"), {"bytes": data}]

        once = [await sight.picture(form) for form in forms]
        again = [await sight.picture(form) for form in forms]

        assert len(reads) == 4, "the bytes of a mapping are bytes"
        assert all(one is other for one, other in zip(once, again, strict=True))

    async def test_pixels_of_another_shape_or_colour_are_another_image(self, sight):
        forms = [image(2, 4), image(4, 2), image(2, 4, "blue")]

        assert len({(await sight.picture(form)).name for form in forms}) == 3

    async def test_a_file_whose_name_is_no_unicode_is_read(self, sight, tmp_path):
        path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")
        image().save(path)

        assert (await sight.picture(path)).tokens == 1

    async def test_a_file_that_changed_is_read_again(self, sight, tmp_path):
        image().save(tmp_path / "f.png")
        before = await sight.picture(str(tmp_path / "f.png"))
        image(4, 4, "blue").save(tmp_path / "f.png")

        assert (await sight.picture(str(tmp_path / "f.png"))).name != before.name

    async def test_what_is_remembered_is_bounded(self, reads):
        sight = Eyes(Squares(), MultimodalConfig(producer_cache_mib=0))
        for _ in range(3):
            await sight.picture(image())

        assert len(reads) == 3

    async def test_siblings_that_begin_together_show_the_same_picture_which_counts_once(self, reads):
        sight = Eyes(Squares(), MultimodalConfig(producer_cache_mib=1))
        noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)  # 192 KiB, and no PNG makes it less

        siblings = await asyncio.gather(*(sight.picture(noise) for _ in range(8)))
        await sight.picture(image())

        assert {id(one) for one in siblings} == {id(await sight.picture(noise))}
        assert len(reads) == 9

    async def test_equal_pictures_that_are_shown_at_the_same_time_are_one_wherever_they_come_from(self):
        sight = Eyes(Squares(), MultimodalConfig(producer_cache_mib=0))
        first = await sight.picture(image())
        recorded = sight.shared(Picture.of(first.data, 1))
        other = sight.shared(Picture.of(first.data, 2))

        assert await sight.picture(first.data) is recorded is first is sight.shown(first.name, 1)
        assert other is not first, "its tokens are others"
        del first, recorded
        gc.collect()
        assert sight.shown(other.name, 1) is None


class TestExpanding:
    def test_each_placeholder_is_repeated_as_often_as_its_image_has_features(self, sight):
        ids = np.array([1, PLACEHOLDER, 2, PLACEHOLDER, PLACEHOLDER], np.int32)

        expanded = sight.expand(ids, [picture(2), picture(1), picture(3)])

        assert expanded.tolist() == [1, 9, 9, 2, 9, 9, 9, 9]
        assert expanded.dtype == np.int32

    @pytest.mark.parametrize("count", [0, 2])
    def test_a_template_that_shows_another_number_of_images_is_refused(self, sight, count):
        with pytest.raises(ImageError, match=f"the chat template shows 1 of {count} images"):
            sight.expand(np.array([PLACEHOLDER], np.int32), [picture(1)] * count)

    def test_features_and_placeholders_must_agree(self, sight):
        sight.check(np.array([PLACEHOLDER] * 3, np.int32), [1, 2])

        with pytest.raises(ImageError, match="3 placeholder tokens for 4 features of 2 images"):
            sight.check(np.array([PLACEHOLDER] * 3, np.int32), [1, 3])
