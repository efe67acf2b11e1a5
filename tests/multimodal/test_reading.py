"""An image is read from every form it comes in, kept as it is where all readers agree about it, and refused by name."""

from __future__ import annotations

import base64
import http.server
import io
import threading
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


PNG = file_of(plain())


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

        assert read_image(base64.b64encode(data).decode(), SETTINGS) == (data, 64, 64)

    @pytest.mark.parametrize("given", [plain(), np.full((4, 6, 3), RED, np.uint8)], ids=["PIL", "array"])
    def test_pixels_become_a_png_with_the_same_pixels(self, given):
        data, height, width = read_image(given, SETTINGS)

        assert (data[:4], height, width) == (b"\x89PNG", 4, 6)
        assert np.array_equal(np.asarray(rgb(data)), np.full((4, 6, 3), RED))

    @pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
    def test_other_compressions_are_kept_too(self, kind):
        data = file_of(plain(), kind)

        assert read_image(data, SETTINGS)[0] == data

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
        with pytest.raises(ImageError, match="cannot be read: Is a directory"):
            read_image(tmp_path, SETTINGS)


class Pictures(http.server.BaseHTTPRequestHandler):
    """/red.png is an image, /away leads to it, anything else is not there."""

    def do_GET(self) -> None:
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

    def test_a_host_that_does_not_answer_is_given_up(self):
        with pytest.raises(ImageError, match="cannot be fetched"):
            read_image("http://127.0.0.1:1/red.png", MultimodalConfig(url_hosts=["127.0.0.1"], fetch_timeout=0.5))
