"""Rows of a dataset that show images: where these stand, and what is wrong with a row, named before the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import picture_env
import pyarrow
import pyarrow.parquet
import pytest
from picture_play import says
from rollouts import play

from stream_rl.errors import DataError
from stream_rl.producer.loading import check_rollout
from stream_rl.sample import StopReason, image_name


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `datasets` converts goes into a folder of this test."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., Path]:
    def write(*rows: dict[str, Any]) -> Path:
        (tmp_path / "pictures").mkdir(exist_ok=True)
        for number in range(3):
            picture_env.picture(number).save(tmp_path / "pictures" / f"{number}.png")
        (tmp_path / "rows.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
        return tmp_path / "rows.jsonl"

    return write


def test_images_stand_where_the_prompt_has_its_marks(seeing, rows):
    path = rows({"problem": "go <image> where <image>up", "answer": 7, "images": ["pictures/0.png", "pictures/1.png"]})
    keys = {"prompt_field": "problem", "label_field": "answer", "image_field": {"image": "images"}}

    row = seeing(data={"path": str(path), **keys}).prompts.row(0)

    parts = row.prompt[0]["content"]
    assert [part.get("text") for part in parts] == ["go ", None, " where ", None, "up"]
    assert parts[1]["image"] == str(path.parent / "pictures" / "0.png")
    assert (row.label, "images" in row.metadata) == (7, False)


async def test_without_a_mark_they_stand_in_front(seeing, rows):
    path = rows({"prompt": "go", "images": ["pictures/2.png"]})
    rollout = seeing(**{"data.path": str(path), "data.image_field": "images"})

    shown = await rollout.show_prompt(rollout.prompts.row(0))

    assert shown.names == (image_name((path.parent / "pictures" / "2.png").read_bytes()),)


async def test_an_image_that_cannot_be_read_names_its_row(seeing, rows):
    path = rows({"prompt": "go", "label": "0 0", "images": ["pictures/9.png"]})
    rollout = seeing(**{"data.path": str(path), "data.image_field": "images"})

    _, journal = await play(rollout, says())

    assert journal.failure[0] is StopReason.ENV_FAILURE
    assert "row 1 of data.path: image '" in journal.failure[1]
    with pytest.raises(DataError, match=r"^row 1 of data\.path: image '.*9\.png' cannot be read"):
        await check_rollout(rollout.config)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_a_later_row_with_another_number_of_marks_is_found_before_the_run(seeing, rows, kind):
    good = {"prompt": "go <image>", "label": "0 0", "images": ["pictures/0.png"]}
    bad = [{**good, "prompt": "<image> <image>"}, {**good, "images": []}, {**good, "images": None}]
    for one in bad:
        path = rows(*[{**good, "prompt": "go go go go go <image>"}] * 20, *[good] * 10, one)
        if kind == "parquet":
            table = [orjson.loads(line) for line in path.read_bytes().splitlines()]
            path = path.with_suffix(".parquet")
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)
        rollout = seeing(**{"data.path": str(path), "data.image_field": "images", "data.shuffle": False})
        with pytest.raises(DataError, match=r"^(line|row) 31 of .* marks <image> for \d images"):
            await check_rollout(rollout.config)


def test_another_number_of_marks_names_the_row(seeing, rows):
    path = rows({"prompt": "go <image> <image>", "images": ["pictures/0.png"]})

    with pytest.raises(Exception, match=r"line 1 of data\.path=.* has 2 marks <image> for 1 images"):
        seeing(**{"data.path": str(path), "data.image_field": "images"}).prompts.row(0)
