"""An image from whatever form it is given in to the bytes that are kept: RGB, compressed once, and checked.

given                                       kept
------------------------------------------  -----------------------------------------------------------------
PIL image, array uint8 (h, w, 3)            a PNG of it
bytes of a file, its path, file:// or data: the bytes as they are, if every reader sees the same RGB image in them
a text of more than 1024 characters         base64, as data:; white space in either is nothing
URL of https:// or http://                  as bytes, from hosts of `multimodal.url_hosts` alone, redirects refused
{"bytes": ..., "path": ...}                 as the datasets library has it: the bytes, else the path

Whatever has another mode, 16 bits a colour, a palette, transparency (shown on white), several frames (the first is
shown) or a rotation in its metadata becomes a PNG in RGB: engine and trainer then read equal pixels whatever their
libraries do about such things.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import stat
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from stream_rl.config import MultimodalConfig
from stream_rl.errors import ImageError
from stream_rl.sample import LARGEST_IMAGE

__all__ = ["LONGEST_PATH", "Read", "held", "read_image", "rgb"]

AS_THEY_ARE = ("PNG", "JPEG", "WEBP")
LONGEST_PATH = 1024
"""Characters: a longer text that is no URL is base64."""
CONVERTIBLE = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "RGBa")
"""Modes of 8 bits: those of more would be clipped in silence."""
_PNG_DEPTH = 24
"""Where a PNG has its bits a colour."""
_BITS = 8
_BLOCK = 1 << 16

Data = TypeVar("Data", bytes, bytearray)

Read = tuple[bytes, int, int]
"""An image's bytes, height and width in pixels."""


def read_image(given: Any, settings: MultimodalConfig) -> Read:
    """Reads and checks one image. Blocks: on files, hosts, and for as long as decoding takes.

    Raises:
        ImageError: it is missing, damaged, too large, of a mode that RGB cannot hold, or may not be fetched.
    """
    given = held(given)
    if isinstance(given, np.ndarray):
        given = _of_array(given)
    if isinstance(given, Image.Image):
        return _compressed(_loaded(given, settings))
    data = _bytes_of(given, settings)
    image = _loaded(_opened(data), settings)
    if image.format in AS_THEY_ARE and image.mode == "RGB" and not _has_more(image, data):
        return data, image.height, image.width
    return _compressed(image)


def held(given: Any) -> Any:
    """What is given in a mapping as the datasets library has it: the bytes, else the path; anything else as it is."""
    if not isinstance(given, Mapping):
        return given
    found = (given.get(name) for name in ("bytes", "path"))
    return next((one for one in found if one is not None and not (isinstance(one, bytes | str) and not one)), given)


def rgb(data: bytes) -> Image.Image:
    """The pixels of an image that `read_image` has given."""
    return Image.open(io.BytesIO(data)).convert("RGB")


def _bytes_of(given: Any, settings: MultimodalConfig) -> bytes:
    if isinstance(given, Path):
        return _file(given)
    if isinstance(given, bytes | bytearray | memoryview):
        return _not_too_long(bytes(given), "an image's bytes")
    if not isinstance(given, str):
        raise ImageError(f"an image cannot be read from a {type(given).__name__}: give a PIL image, bytes or a path")
    return _of_text(given, settings)


def _of_text(given: str, settings: MultimodalConfig) -> bytes:
    kind, colon, rest = given.partition(":")
    if colon and kind in ("http", "https"):
        return _fetched(given, settings)
    if colon and kind == "data":
        return _base64(rest.partition(",")[2], "a data: URL")
    if colon and kind == "file":
        return _file(Path(urllib.request.url2pathname(_parsed(given).path)))
    if len(given) > LONGEST_PATH:
        return _base64(given, "a text")
    return _file(Path(given))


def _file(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe or a device may never end
            raise ImageError(f"image {str(path)!r} is no file")
        if found.st_size > LARGEST_IMAGE:
            raise ImageError(f"image {str(path)!r} has {found.st_size} bytes, more than {LARGEST_IMAGE}")
        return path.read_bytes()
    except OSError as error:
        raise ImageError(f"image {str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a zero byte in the name
        raise ImageError(f"image {str(path)!r:.80} is no path: {error}") from error


def _base64(text: str, what: str) -> bytes:
    try:
        return _not_too_long(base64.b64decode("".join(text.split()), validate=True), what)
    except ValueError as error:
        raise ImageError(f"an image given as {what} ({text[:24]!r}...) is no base64: {error}") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to a host that is not allowed."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Refuses."""


def _fetched(url: str, settings: MultimodalConfig) -> bytes:
    host, until = _parsed(url).hostname, time.monotonic() + settings.fetch_timeout
    if host not in settings.url_hosts:
        raise ImageError(f"image {url!r:.200} is not fetched: its host {host!r} is not in multimodal.url_hosts")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with opener.open(url, timeout=settings.fetch_timeout) as answer:
            data = bytearray()
            while part := answer.read1(_BLOCK):  # each of them within the time-out: a slow host could take for ever
                data += part
                _not_too_long(data, f"image {url!r:.200}")
                if time.monotonic() > until:
                    raise TimeoutError(f"no end within multimodal.fetch_timeout={settings.fetch_timeout:g} seconds")
            return bytes(data)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ImageError(f"image {url!r:.200} cannot be fetched: {error}") from error


def _parsed(url: str) -> urllib.parse.ParseResult:
    try:
        return urllib.parse.urlparse(url)
    except ValueError as error:
        raise ImageError(f"image {url!r:.200} is no URL: {error}") from error


def _not_too_long(data: Data, what: str) -> Data:
    if len(data) > LARGEST_IMAGE:
        raise ImageError(f"{what} is longer than {LARGEST_IMAGE} bytes")
    return data


def _of_array(array: Any) -> Image.Image:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise ImageError(f"an image as an array must be uint8 (h, w, 3), not {array.dtype} {array.shape}")
    return Image.fromarray(array)


def _opened(data: bytes) -> Image.Image:
    """The image of a file, of which only the head was read."""
    what = f"an image of {len(data)} bytes"
    with _damage_named(what):
        try:
            return Image.open(io.BytesIO(data))
        except UnidentifiedImageError as error:
            raise ImageError(f"{what} is of no known format: it begins with {data[:8]!r}") from error
        except Image.DecompressionBombError as error:
            raise ImageError(f"{what} is too large: {error}") from error


@contextlib.contextmanager
def _damage_named(what: str) -> Iterator[None]:
    """Makes an ImageError of whatever the reader of a format raises."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:  # readers of damaged files raise anything
        raise ImageError(f"{what} is damaged: {error or type(error).__name__}") from error


def _loaded(image: Image.Image, settings: MultimodalConfig) -> Image.Image:
    """The image with its pixels, which take memory only if their number is allowed."""
    width, height = image.size
    if width * height > settings.max_pixels:
        raise ImageError(
            f"an image of {width}x{height} pixels is larger than multimodal.max_pixels={settings.max_pixels}"
        )
    if not width * height:
        raise ImageError(f"an image of {width}x{height} pixels shows nothing")
    if image.mode not in CONVERTIBLE:
        raise ImageError(f"an image of mode {image.mode!r} cannot be shown in RGB without loss: convert it before")
    if image.format == "EPS":  # reading it would run it, in a program that may not be there
        raise ImageError("an image of format EPS is a program: convert it before")
    with _damage_named(f"an image of {width}x{height} pixels"):
        image.load()
    return image


def _has_more(image: Image.Image, data: bytes) -> bool:
    """Whether readers may differ about it: 16 bits a colour, frames, transparency, or a rotation in its metadata."""
    with _damage_named(f"an image of {image.width}x{image.height} pixels"):
        rotated = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
        deep = image.format == "PNG" and data[_PNG_DEPTH] > _BITS
        return deep or rotated or "transparency" in image.info or getattr(image, "n_frames", 1) > 1


def _compressed(image: Image.Image) -> Read:
    file = io.BytesIO()
    with _damage_named(f"an image of {image.width}x{image.height} pixels"):
        image = ImageOps.exif_transpose(image)
        if image.has_transparency_data:
            clear = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
        image.convert("RGB").save(file, "PNG")
    return _not_too_long(file.getvalue(), "an image as PNG"), image.height, image.width
