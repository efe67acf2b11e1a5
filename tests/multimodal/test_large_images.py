"""Images that are too large are refused before they take memory; those just small enough are kept as they are."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from stream_rl.config import MultimodalConfig
from stream_rl.errors import ImageError
from stream_rl.multimodal.reading import read_image, rgb
from stream_rl.sample import LARGEST_IMAGE

SETTINGS = MultimodalConfig()


def bomb(width: int, height: int) -> bytes:
    """A black PNG of one bit a pixel, some thousand times smaller than its pixels in RGB."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width // 8 + 1) * height), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.fixture
def no_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the pixels of a file fails."""
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _image: pytest.fail("its pixels were read"))


@pytest.mark.usefixtures("no_pixels")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((5000, 5000), r"5000x5000 pixels is larger than multimodal\.max_pixels=16777216"),
        ((20_000, 1000), r"20000x1000 pixels is larger than multimodal\.max_pixels=16777216"),
        ((10_000, 10_000), r"10000x10000 pixels is larger than multimodal\.max_pixels=16777216"),
        ((16_000, 16_000), r"an image of \d+ bytes is too large: Image size \(256000000 pixels\) exceeds limit"),
    ],
)
def test_a_small_file_of_many_pixels_is_refused_by_its_head(size: tuple[int, int], reason: str, tmp_path: Path) -> None:
    data = bomb(*size)
    assert len(data) < size[0] * size[1] / 500
    (tmp_path / "bomb.png").write_bytes(data)
    for given in (data, tmp_path / "bomb.png", {"bytes": data}):
        with pytest.raises(ImageError, match=reason):
            read_image(given, SETTINGS)


def test_one_20000_pixels_wide_is_read_if_it_is_low() -> None:
    file = io.BytesIO()
    Image.new("RGB", (20_000, 800), "red").save(file, "PNG")

    assert read_image(file.getvalue(), SETTINGS) == (file.getvalue(), 800, 20_000)


def test_a_file_of_50_mb_is_kept_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "noise.png"
    pixels = np.random.default_rng(0).integers(0, 256, (4090, 4090, 3), np.uint8)
    Image.fromarray(pixels).save(path, compress_level=0)
    assert path.stat().st_size > 50_000_000

    data, height, width = read_image(path, SETTINGS)

    assert (data, height, width) == (path.read_bytes(), 4090, 4090)
    assert np.array_equal(np.asarray(rgb(data)), pixels)


def test_a_file_that_is_larger_than_an_image_may_be_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.png"
    with path.open("wb") as file:
        file.truncate(LARGEST_IMAGE + 1)
    monkeypatch.setattr(Path, "read_bytes", lambda _path: pytest.fail("it was read"))

    with pytest.raises(ImageError, match=r"large\.png' has 67108865 bytes, more than 67108864"):
        read_image(path, SETTINGS)
    with pytest.raises(ImageError, match="an image's bytes is longer than 67108864 bytes"):
        read_image(bytes(LARGEST_IMAGE + 1), SETTINGS)
