"""How conversations with images are read and put into ids, for one model; images that come again are read once.

    messages with images ─► read: bare messages, and the pictures ─► ids, one placeholder an image ─► expand

What is remembered is found by the pixels, the bytes or the address that were given, and is bounded in bytes. Of equal
pictures that samples show at the same time there is one, wherever they came from.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from stream_rl.config import MultimodalConfig
from stream_rl.errors import ImageError
from stream_rl.multimodal.family import Family
from stream_rl.multimodal.picture import Picture
from stream_rl.multimodal.reading import LONGEST_PATH, held, read_image
from stream_rl.multimodal.recent import Recent
from stream_rl.sample import Int32

__all__ = ["Eyes", "has_images"]

Message = Mapping[str, Any]
IMAGE: Mapping[str, Any] = {"type": "image"}
"""A part of a message that a chat template renders as one placeholder."""


class Eyes:
    """Reads images for one model. Methods may be called by many tasks of one event loop.

    Args:
        family: the model's.
        settings: what may be read, and how much is remembered.
    """

    def __init__(self, family: Family, settings: MultimodalConfig) -> None:
        self.family = family
        self._settings = settings
        self._remembered: Recent[bytes, Picture] = Recent(
            settings.producer_cache_mib * 2**20, lambda picture: len(picture.data)
        )
        self._shown: weakref.WeakValueDictionary[tuple[str, int], Picture] = weakref.WeakValueDictionary()

    async def read(self, messages: Sequence[Message]) -> tuple[Sequence[Message], tuple[Picture, ...]]:
        """The messages with bare images, and the pictures in order; the same messages where there is no image.

        Raises:
            ImageError: an image cannot be read, or something else than text and images is shown.
        """
        if not has_images(messages):
            return messages, ()
        bare: list[Message] = []
        pictures: list[Picture] = []
        for message in messages:
            content = message.get("content")
            if isinstance(content, list | tuple):
                given = [_given(part) for part in content]
                pictures += [await self.picture(image) for image in given if image is not None]
                parts = [part if image is None else IMAGE for part, image in zip(content, given, strict=True)]
                bare.append({**message, "content": parts})
            else:
                bare.append(message)
        return bare, tuple(pictures)

    async def picture(self, given: Any) -> Picture:
        """One image, read in a thread unless an equal one is remembered. Raises ImageError."""
        key = _key(given)
        if key is not None and (known := self._remembered.get(key)) is not None:
            return known
        data, height, width = await asyncio.to_thread(read_image, given, self._settings)
        picture = self.shared(Picture.of(data, self.family.tokens_of(height, width)))
        # Another task may have read an equal one meanwhile: all samples then show the same.
        return picture if key is None else self._remembered.keep(key, picture)

    def shared(self, picture: Picture) -> Picture:
        """The picture, or the equal one that there is already."""
        return self._shown.setdefault((picture.name, picture.tokens), picture)

    def shown(self, name: str, tokens: int) -> Picture | None:
        """The picture of that name, if some sample shows it."""
        return self._shown.get((name, tokens))

    def expand(self, ids: Int32, pictures: Sequence[Picture]) -> Int32:
        """Repeats each image's one placeholder as often as it has features, int32 (n,).

        Raises:
            ImageError: the ids do not have one placeholder for each picture.
        """
        counts = np.ones(len(ids), np.int64)
        places = np.flatnonzero(ids == self.family.placeholder)
        if len(places) != len(pictures):
            raise ImageError(f"the chat template shows {len(places)} of {len(pictures)} images")
        counts[places] = [picture.tokens for picture in pictures]
        return np.repeat(ids, counts)

    def check(self, ids: Int32, image_tokens: Sequence[int]) -> None:
        """Invariant I9: as many placeholders as features. Raises ImageError."""
        placeholders, features = int(np.count_nonzero(ids == self.family.placeholder)), sum(image_tokens)
        if placeholders != features:
            raise ImageError(f"{placeholders} placeholder tokens for {features} features of {len(image_tokens)} images")


def has_images(messages: Sequence[Message]) -> bool:
    """Whether a message has a part that is not text."""
    return any(
        part.get("type", "text") != "text"
        for message in messages
        if isinstance(content := message.get("content"), list | tuple)
        for part in content
    )


def _given(part: Mapping[str, Any]) -> Any:
    """What an image part holds, None for text. Raises ImageError."""
    kind = part.get("type", "text")
    if kind == "text":
        return None
    given = part.get(kind) if kind in ("image", "image_url") else None
    if isinstance(given, Mapping) and "url" in given:
        given = given["url"]
    if given is None:
        raise ImageError(f"a part of a message must be text or an image, not {str(dict(part))[:80]}")
    return given


def _key(given: Any) -> bytes | None:
    """Equal for equal images; None for what is not in memory yet, and for a file that is not there."""
    given = held(given)
    if isinstance(given, bytes):
        return _hash("bytes", given)
    if isinstance(given, np.ndarray):
        return _hash(f"array {given.dtype} {given.shape}", given.tobytes())
    if type(given) is Image.Image:  # a subclass reads its file when it is looked at
        return _key_of_image(given)
    if isinstance(given, str) and len(given) > LONGEST_PATH:
        return _hash("text", given.encode(errors="surrogatepass"))
    return _key_of_file(given) if isinstance(given, str | Path) else None


def _key_of_image(image: Image.Image) -> bytes | None:
    try:
        return _hash(f"image {image.mode} {image.size} {image.getpalette()} {image.info}", image.tobytes())
    except ValueError:  # it was closed, which reading it says
        return None


def _key_of_file(path: str | Path) -> bytes | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    about = f"{path} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
    return _hash("file", about.encode(errors="surrogatepass"))


def _hash(kind: str, content: bytes) -> bytes:
    whole = hashlib.blake2b(kind.encode(errors="surrogatepass") + b"\n", digest_size=16)
    whole.update(content)
    return whole.digest()
