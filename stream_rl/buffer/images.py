"""Images: stored once per run under the hash of their bytes, shared by every turn and group that names them.

    put_images ─► commit of the turn that names them ─► counted for its group ─► gone with the last group that does

An image that no commit names expires by itself. A commit that names one that is not there is refused (ImageMissing):
put it, and commit again. Siblings that begin or come back together put or load the same images at once: what is on its
way already is waited for, and not sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from stream_rl.buffer.connection import STAGED_SECONDS, Connection
from stream_rl.buffer.journals import bounded
from stream_rl.errors import CorruptRecord
from stream_rl.sample import LARGEST_IMAGE, image_name

__all__ = ["ImageCalls"]


class ImageCalls:
    """The images' side of TrajectoryBuffer. All of these raise BufferUnavailable and BufferFull."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._on_their_way: dict[str, asyncio.Task[None]] = {}
        self._coming: dict[str, asyncio.Task[dict[str, bytes]]] = {}

    async def put_images(self, images: Iterable[bytes]) -> tuple[str, ...]:
        """Stores images (as compressed as they came) and gives their names, in order, for `Turn.images`.

        Only bytes that the run does not have yet are sent, at most 8 MB at a time. What is on its way for another call
        is waited for; if that fails, so does this, and the next call sends it again.

        Raises:
            ValueError: an image is larger than LARGEST_IMAGE.
        """
        named = [(image_name(image), image) for image in images]
        if large := [len(image) for _, image in named if len(image) > LARGEST_IMAGE]:
            raise ValueError(f"an image of {large[0]} bytes is over the limit of {LARGEST_IMAGE}")
        new = {name: image for name, image in named if name not in self._on_their_way}
        if new:
            # A task of its own: others wait for it, and whoever asked first may be cancelled.
            self._on_their_way |= dict.fromkeys(new, asyncio.create_task(self._ship(new)))
        await asyncio.gather(*map(asyncio.shield, {self._on_their_way[name] for name, _ in named}))
        return tuple(name for name, _ in named)

    async def load_images(self, names: Sequence[str]) -> dict[str, bytes]:
        """The images' bytes by name, each once, read in chunks of at most 8 MB; what comes for another call is shared.

        Raises:
            CorruptRecord: an image is not there.
        """
        new = [name for name in dict.fromkeys(names) if name not in self._coming]
        if new:
            self._coming |= dict.fromkeys(new, asyncio.create_task(self._fetch(new)))
        found: dict[str, bytes] = {}
        for part in await asyncio.gather(*map(asyncio.shield, {self._coming[name] for name in names})):
            found |= part
        if absent := [name for name in names if name not in found]:
            raise CorruptRecord(f"image {absent[0]} is not in the buffer")
        return {name: found[name] for name in names}

    async def _ship(self, images: Mapping[str, bytes]) -> None:
        try:
            there = await self._touch(list(images))
            absent = [(name, image) for name, image in images.items() if name not in there]
            for some in bounded(absent, lambda entry: len(entry[1])):
                await self._connection.store({self._connection.key("image", name): [image] for name, image in some})
        finally:
            for name in images:
                del self._on_their_way[name]

    async def _fetch(self, names: Sequence[str]) -> dict[str, bytes]:
        """Those that are there."""
        try:
            sizes = await self._connection.read([("STRLEN", self._connection.key("image", name)) for name in names])
            found: dict[str, bytes] = {}
            for some in bounded(zip(names, sizes, strict=True), lambda entry: entry[1]):
                read = [("GET", self._connection.key("image", name)) for name, _ in some]
                images = await self._connection.read(read, plain=True)
                found |= {
                    name: bytes(image) for (name, _), image in zip(some, images, strict=True) if image is not None
                }
            return found
        finally:
            for name in names:
                del self._coming[name]

    async def _touch(self, names: Sequence[str]) -> set[str]:
        """Those that are there; they stay for another while even if no turn names them."""
        keys = [self._connection.key("image", name) for name in names]
        touch = [(("EXPIRE", key, STAGED_SECONDS, "GT"), ("EXISTS", key)) for key in keys]
        found = await self._connection.read([command for pair in touch for command in pair])
        return {name for name, exists in zip(names, found[1::2], strict=True) if exists}
