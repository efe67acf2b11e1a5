"""An image is read from every form it comes in, kept as it is where all readers agree about it, and refused by name."""

from __future__ import annotations

import base64
import contextlib
import http.server
import io
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stream_rl.config import MultimodalConfig
from stream_rl.errors import ImageError
from stream_rl.multimodal import reading
from stream_rl.multimodal.reading import read_image, rgb

SETTINGS = MultimodalConfig(max_pixels=10_000)
RED = (200, 10, 20)


def file_of(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def plain(size: tuple[int, int] = (6, 4), mode: str = "RGB") -> Image.Image:
    return Image.new("RGB", size, RED).convert(mode)


def deep_png(kind: int, channels: int) -> bytes:
    """A PNG of 2x2 pixels with 16 bits a colour, which Pillow does not write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + bytes(range(4 * channels)) for _ in range(2))
    head = struct.pack(">IIBBBBB", 2, 2, 16, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def with_info(**info: object) -> Image.Image:
    image = plain()
    image.info |= info
    return image


def closed() -> Image.Image:
    image = plain()
    image.close()
    return image


PNG = file_of(plain())
COLOURS = [plain(), Image.new("RGB", (6, 4), "blue")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "red.png").write_bytes(PNG)
    return tmp_path / "red.png"


class TestForms:
    def test_a_file_however_it_is_given_is_kept_byte_for_byte(self, path):
        coded = base64.b64encode(PNG).decode()
        given = [PNG, bytearray(PNG), str(path), path, path.as_uri(), f"data:image/png;base64,{coded}",
                 {"bytes": PNG, "path": None}, {"bytes": None, "path": str(path)}]  # fmt: skip

        assert all(read_image(form, SETTINGS) == (PNG, 4, 6) for form in given)

    def test_a_long_text_without_an_address_is_base64(self):
        image = Image.effect_noise((64, 64), 100).convert("RGB")
        data = file_of(image)

        for text in (base64.b64encode(data).decode(), base64.encodebytes(data).decode()):
            assert read_image(text, SETTINGS) == read_image(f"data:image/png;base64,{text}", SETTINGS) == (data, 64, 64)

    @pytest.mark.parametrize("given", [plain(), np.full((4, 6, 3), RED, np.uint8)], ids=["PIL", "array"])
    def test_pixels_become_a_png_with_the_same_pixels(self, given):
        data, height, width = read_image(given, SETTINGS)

        assert (data[:4], height, width) == (b"\x89PNG", 4, 6)
        assert np.array_equal(np.asarray(rgb(data)), np.full((4, 6, 3), RED))

    @pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
    def test_other_compressions_are_kept_too(self, kind):
        data = file_of(plain(), kind)

        assert read_image(data, SETTINGS)[0] == data

    @pytest.mark.parametrize("mode", reading.CONVERTIBLE)
    def test_pixels_of_every_mode_that_can_be_are_shown(self, mode):
        data, height, width = read_image(Image.new(mode, (6, 4)), SETTINGS)

        assert (rgb(data).size, height, width) == ((6, 4), 4, 6)

    @pytest.mark.parametrize(("kind", "channels"), [(2, 3), (4, 2), (6, 4)])
    def test_colours_of_16_bits_become_those_of_8_that_every_reader_sees(self, kind, channels):
        data, _, _ = read_image(deep_png(kind, channels), SETTINGS)

        assert data[24] == 8

    @pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
    def test_of_several_frames_the_first_is_shown(self, kind):
        options = {"lossless": True} if kind == "WEBP" else {}
        data, _, _ = read_image(
            file_of(COLOURS[0], kind, save_all=True, append_images=COLOURS[1:], **options), SETTINGS
        )

        assert data[:4] == b"\x89PNG"
        assert np.array_equal(np.asarray(rgb(data)), np.asarray(COLOURS[0]))

    @pytest.mark.parametrize("mode", ["L", "P", "CMYK", "RGBA", "1"])
    def test_other_modes_become_rgb(self, mode):
        image = plain(mode=mode)

        data, _, _ = read_image(file_of(image, "TIFF"), SETTINGS)

        assert data[:4] == b"\x89PNG"
        assert np.array_equal(np.asarray(rgb(data)), np.asarray(image.convert("RGB")))

    def test_what_is_transparent_is_shown_on_white(self):
        data, _, _ = read_image(Image.new("RGBA", (2, 2), (0, 0, 0, 0)), SETTINGS)

        assert np.asarray(rgb(data)).min() == 255

    def test_a_rotation_in_the_metadata_is_made_one_of_pixels(self):
        exif = Image.Exif()
        exif[0x0112] = 6

        _, height, width = read_image(file_of(plain((6, 4)), "JPEG", exif=exif), SETTINGS)

        assert (height, width) == (6, 4)


class TestRefusals:
    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            (PNG[:50], "damaged"),
            (PNG[:8] + b"\0" * 60, "damaged|no known format"),
            (b"not an image", "no known format: it begins with b'not an i'"),
            ("/nowhere/red.png", "'/nowhere/red.png' cannot be read: No such file"),
            ("red\0.png", "is no path"),
            ("data:image/png;base64,###", "no base64"),
            ("data:image/png;base64,é", "no base64"),
            ("é" * 2000, "no base64"),
            ("\ud800" * 2000, "no base64"),
            ("data:image/svg+xml,%3Csvg", "no base64"),
            ("", "is no file"),
            ("/dev/null", "'/dev/null' is no file"),
            ("file://[", "'file://\\[' is no URL"),
            ("http://[", "'http://\\[' is no URL"),
            ("http:", "its host None is not in multimodal.url_hosts"),
            (b"", "an image of 0 bytes is of no known format"),
            ({"bytes": b"", "path": None}, "cannot be read from a dict"),
            ({"bytes": np.zeros(3, np.uint8), "path": None}, r"uint8 \(h, w, 3\), not uint8 \(3,\)"),
            (file_of(plain(), "EPS"), "of format EPS is a program"),
            (file_of(plain(), exif=b"Exif\0\0garbage"), "6x4 pixels is damaged"),
            (with_info(exif=b"garbage"), "6x4 pixels is damaged"),
            (with_info(icc_profile="text"), "6x4 pixels is damaged"),
            (closed(), "6x4 pixels is damaged: Operation on closed image"),
            (Image.new("La", (2, 2)), "mode 'La' cannot be shown"),
            (deep_png(0, 1), "mode 'I;16' cannot be shown"),
            (np.zeros((0, 4, 3), np.uint8), "shows nothing"),
            (np.zeros((2, 4, 6, 3), np.uint8), r"not uint8 \(2, 4, 6, 3\)"),
            (np.zeros((4, 6, 3), object), "not object"),
            (plain((200, 100)), "200x100 pixels is larger than multimodal.max_pixels=10000"),
            (file_of(plain((200, 100))), "200x100 pixels is larger than multimodal.max_pixels=10000"),
            (Image.new("F", (2, 2)), "mode 'F' cannot be shown in RGB without loss"),
            (Image.new("I;16", (2, 2)), "mode 'I;16'"),
            (np.zeros((4, 6, 3)), r"uint8 \(h, w, 3\), not float64"),
            (np.zeros((4, 6), np.uint8), "not uint8"),
            (7, "cannot be read from a int"),
            ({"path": None}, "cannot be read from a dict"),
        ],
    )
    def test_it_says_what_is_wrong(self, given, reason):
        with pytest.raises(ImageError, match=reason):
            read_image(given, SETTINGS)

    def test_a_truncated_file_that_was_opened_before_is_found_too(self):
        image = Image.open(io.BytesIO(file_of(Image.effect_noise((60, 60), 90).convert("RGB"), "JPEG")[:-400]))

        with pytest.raises(ImageError, match="60x60 pixels is damaged"):
            read_image(image, SETTINGS)

    def test_pixels_whose_png_is_larger_than_the_buffer_takes(self, monkeypatch):
        monkeypatch.setattr(reading, "LARGEST_IMAGE", 1000)

        with pytest.raises(ImageError, match="an image as PNG is longer than 1000 bytes"):
            read_image(Image.effect_noise((64, 64), 100), SETTINGS)

    def test_a_folder_is_no_image(self, tmp_path):
        with pytest.raises(ImageError, match="is no file"):
            read_image(tmp_path, SETTINGS)

    def test_a_pipe_is_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "pipe.png")

        with pytest.raises(ImageError, match="is no file"):
            read_image(tmp_path / "pipe.png", SETTINGS)

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "DDS", "JPEG2000", "ICO"])
    def test_whatever_a_damaged_file_holds_it_is_shown_or_refused_by_name(self, kind):
        random = np.random.default_rng(0)
        exif = Image.Exif()
        exif[0x0112] = 6
        options = {"exif": exif} if kind in ("PNG", "JPEG", "WEBP", "TIFF", "AVIF") else {}
        whole = file_of(Image.effect_noise((24, 20), 80).convert("RGB"), kind, **options)
        for _ in range(150):
            damaged = bytearray(whole[: int(random.integers(len(whole)))] if random.random() < 0.2 else whole)
            for place in random.integers(0, max(1, min(len(damaged), 300)), random.integers(1, 5)):
                damaged[place : place + 1] = random.choice([0, 255, random.integers(256)], 1).astype(np.uint8).tobytes()
            try:
                data, height, width = read_image(bytes(damaged), SETTINGS)
            except ImageError:
                continue
            assert rgb(data).size == (width, height)


class Pictures(http.server.BaseHTTPRequestHandler):
    """/red.png is an image, /away leads to it, /slow sends a byte now and then, anything else is not there."""

    def do_GET(self) -> None:
        if self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):  # the other side has given up
                for _ in range(100):
                    self.wfile.write(b"a")
                    time.sleep(0.1)
            return
        away = self.path == "/away"
        self.send_response(302 if away else 200 if self.path == "/red.png" else 404)
        if away:
            self.send_header("Location", "/red.png")
        self.end_headers()
        self.wfile.write(PNG)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pictures) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class TestUrls:
    def test_an_allowed_host_is_asked(self, site):
        assert read_image(f"{site}/red.png", MultimodalConfig(url_hosts=["127.0.0.1"]))[0] == PNG

    def test_no_other_host_is(self, site):
        with pytest.raises(ImageError, match=r"its host '127.0.0.1' is not in multimodal.url_hosts"):
            read_image(f"{site}/red.png", MultimodalConfig(url_hosts=["example.org"]))

    @pytest.mark.parametrize("page", ["away", "gone.png"])
    def test_a_redirect_and_a_missing_page_are_refused(self, site, page):
        with pytest.raises(ImageError, match="cannot be fetched"):
            read_image(f"{site}/{page}", MultimodalConfig(url_hosts=["127.0.0.1"]))

    def test_a_host_that_never_comes_to_an_end_is_given_up(self, site):
        with pytest.raises(ImageError, match=r"no end within multimodal\.fetch_timeout=0\.3 seconds"):
            read_image(f"{site}/slow", MultimodalConfig(url_hosts=["127.0.0.1"], fetch_timeout=0.3))

    def test_an_address_that_no_request_can_have(self, site):
        with pytest.raises(ImageError, match="cannot be fetched: URL can't contain control characters"):
            read_image(f"{site}/red 1.png", MultimodalConfig(url_hosts=["127.0.0.1"]))

    def test_a_host_that_does_not_answer_is_given_up(self):
        with pytest.raises(ImageError, match="cannot be fetched"):
            read_image("http://127.0.0.1:1/red.png", MultimodalConfig(url_hosts=["127.0.0.1"], fetch_timeout=0.5))
