"""Logs for machines: what every line carries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from stream_rl.metrics.logs import log_formatter
from stream_rl.metrics.playing import Playing, playing

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Lines]:
    """A logger that writes JSON; `lines()` reads what it wrote."""
    path = tmp_path / "log"
    handler = logging.FileHandler(path)
    handler.setFormatter(log_formatter("demo", "producer-0", json=True))
    logger = logging.getLogger("stream_rl.test_logs")
    logger.addHandler(handler)
    yield lambda: [orjson.loads(line) for line in path.read_text().splitlines()]
    logger.removeHandler(handler)
    handler.close()


def test_a_samples_line_carries_what_it_belongs_to(lines: Lines) -> None:
    logger = logging.getLogger("stream_rl.test_logs")
    with playing(Playing("demo", 12, "12-3", lease=2, next_turn=lambda: 4)):
        logger.warning("lost %s\nindeed", "it")
    logger.warning("outside")
    inside, outside = lines()
    assert {name: inside[name] for name in ("run", "process", "group", "sample", "turn", "lease", "message")} == {
        "run": "demo", "process": "producer-0", "group": 12, "sample": "12-3", "turn": 4, "lease": 2,
        "message": "lost it\nindeed",
    }  # fmt: skip
    assert not {"group", "sample", "turn", "lease"} & outside.keys()


def test_an_error_has_its_traceback_in_the_same_line(lines: Lines) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("stream_rl.test_logs").exception("ended")
    (line,) = lines()
    assert line["level"] == "ERROR"
    assert line["error"].endswith("ValueError: broken")


def test_a_text_that_is_no_utf_8_is_logged_all_the_same(lines: Lines) -> None:
    logging.getLogger("stream_rl.test_logs").warning("cannot open %s", "caf\udce9")
    (line,) = lines()
    assert line["message"] == "cannot open caf\\udce9"


def test_lines_for_people_stay_as_they_are() -> None:
    record = logging.LogRecord("n", logging.INFO, "", 0, "said %s", ("this",), None)
    assert log_formatter("demo", "p", json=False).format(record).endswith(" INFO n: said this")
