"""The report in a real browser: every panel is drawn, nothing is fetched, and at 1440 px nothing is cut off."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from stream_rl.metrics.plots import panels
from stream_rl.metrics.report import write_report
from stream_rl.metrics.run_folder import RunRecords

sys.path.insert(0, str(Path(__file__).parents[1] / "metrics"))
from run_folders import write_run

WIDTH = 1440


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("page") / "run"))


def chromium(*options: str) -> str:
    """What headless Chromium prints."""
    program = shutil.which("chromium")
    assert program is not None, "these tests need Chromium: apt-get install chromium"
    command = [
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--virtual-time-budget=15000",
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_panel_is_drawn(report: Path) -> None:
    page = chromium("--dump-dom", f"file://{report}")
    drawn = re.findall(r'id="plot-(\d+)"[^>]*>\s*<div[^>]*class="plot-container', page)
    assert sorted(map(int, drawn)) == list(range(len(panels(RunRecords.load(report.parent)))))


def test_at_1440_pixels_the_page_fills_its_width_and_has_its_colours(report: Path, tmp_path: Path) -> None:
    picture = tmp_path / "report.png"
    chromium(f"--window-size={WIDTH},2000", f"--screenshot={picture}", f"file://{report}")
    with Image.open(picture) as image:
        assert image.size == (WIDTH, 2000)
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24) or ()}
        right = {image.convert("RGB").getpixel((x, y)) for x in range(1300, 1400) for y in range(300, 1900, 7)}
    assert {(37, 99, 235), (15, 159, 143), (224, 138, 0)} <= colours  # the blue, teal and amber of lines and bars
    assert len(right) > 20, "the right column is empty"
