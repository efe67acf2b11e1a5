"""An image as everything but the model has it, and token ids with the images among them."""

from __future__ import annotations

import base64
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from stream_rl.sample import Int32, image_name

__all__ = ["Encoded", "Picture"]


@dataclass(frozen=True)
class Picture:
    """One image: RGB, compressed, and never changed again.

    data    bytes of a PNG, JPEG or WebP file
    tokens  how many placeholders stand for it in the ids
    name    the hash of `data`: the buffer's name for it
    """

    data: bytes = field(repr=False)
    tokens: int
    name: str

    @classmethod
    def of(cls, data: bytes, tokens: int) -> Picture:
        """The picture with its name."""
        return cls(data, tokens, image_name(data))

    @functools.cached_property
    def sent(self) -> orjson.Fragment:
        """The image in a request's JSON, as a data URL: made once, for all requests of all samples that show it."""
        return orjson.Fragment(b'"data:image;base64,' + base64.b64encode(self.data) + b'"')


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids int32 (n,), each image's placeholders repeated as often as it has features, and the images in order."""

    tokens: Int32
    pictures: Sequence[Picture] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The images' names, in order."""
        return tuple(picture.name for picture in self.pictures)

    @property
    def image_tokens(self) -> tuple[int, ...]:
        """How many of the tokens stand for each image."""
        return tuple(picture.tokens for picture in self.pictures)
