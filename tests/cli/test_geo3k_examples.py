"""The geometry recipes read rows in the forms in which geo3k is around, by our names of settings and by slime's.

They pass a dry run, with a tiny model in the place of the one of 2B.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow
import pyarrow.parquet
import pytest
from command_line import StreamRL

from stream_rl.config import Config
from stream_rl.envs.geo_multi_turn import prompt
from stream_rl.producer.prompts import open_prompts

EXAMPLES = Path(__file__).parents[2] / "examples"
COUNT = 3


def rows() -> Iterator[tuple[str, str, bytes]]:
    """Problem, answer and a PNG file of made-up questions."""
    for index in range(COUNT):
        made = prompt(0, index, SimpleNamespace(figure=64))
        picture, text = made["prompt"][0]["content"]
        data = io.BytesIO()
        picture["image"].save(data, "PNG")
        yield f"<image>{text['text']}", made["label"], data.getvalue()


def data_urls(folder: Path) -> Path:
    """JSON lines with images as data: URLs."""
    path = folder / "train.jsonl"
    lines = [
        orjson.dumps(
            {
                "problem": problem,
                "answer": answer,
                "images": [f"data:image/png;base64,{base64.b64encode(png).decode()}"],
            }
        )
        for problem, answer, png in rows()
    ]
    path.write_bytes(b"\n".join(lines))
    return path


def structs(folder: Path) -> Path:
    """Parquet with images as the datasets library stores them."""
    path = folder / "train.parquet"
    problems, answers, images = zip(*rows(), strict=True)
    columns = {
        "images": [[{"bytes": png, "path": None}] for png in images],
        "problem": problems,
        "answer": answers,
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


BUDGETS = [("geo3k_qwen3_vl_2b", (3, 4096)), ("geo3k_qwen3_vl_2b_20_turns", (20, 32768))]


@pytest.mark.parametrize(("example", "budget"), BUDGETS)
def test_the_recipes_read_such_rows(example: str, budget: tuple[int, int], tmp_path: Path) -> None:
    config = Config.load(EXAMPLES / f"{example}.yaml", [f"data.path={data_urls(tmp_path)}"])
    assert (config.rollout.max_turns, config.rollout.max_response_len) == budget
    row = open_prompts(config, SimpleNamespace(prompt=None), SimpleNamespace()).row(0)
    (message,) = row.prompt
    assert [part["type"] for part in message["content"]] == ["image", "text"]
    assert row.label in {answer for _, answer, _ in rows()}


@pytest.mark.parametrize("tiny_vlm", ["tiny-vlm"], indirect=True)
@pytest.mark.parametrize("write", [None, data_urls, structs])
@pytest.mark.parametrize("example", [name for name, _ in BUDGETS])
def test_a_dry_run_finds_nothing_wrong(
    stream_rl: StreamRL, tiny_vlm: Path, example: str, write: Any, tmp_path: Path
) -> None:
    data = [] if write is None else [f"data.path={write(tmp_path)}"]
    mine = [f"run={tmp_path / 'run'}", f"model.path={tiny_vlm}", *data]
    answer = stream_rl("train", EXAMPLES / f"{example}.yaml", *mine, "--dry-run")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("ready: ")


@pytest.mark.parametrize("tiny_vlm", ["tiny-vlm"], indirect=True)
@pytest.mark.parametrize("example", [name for name, _ in BUDGETS])
def test_a_dry_run_names_the_row_whose_image_is_none(
    stream_rl: StreamRL, tiny_vlm: Path, example: str, tmp_path: Path
) -> None:
    path = data_urls(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"base64,iVBOR", b"base64,AAAAA"))
    mine = [f"run={tmp_path / 'run'}", f"model.path={tiny_vlm}", f"data.path={path}"]
    answer = stream_rl("train", EXAMPLES / f"{example}.yaml", *mine, "--dry-run")
    assert answer.code == 2
    assert re.search(r"row \d of data\.path: an image of \d+ bytes is of no known format", answer.err)


@pytest.mark.parametrize("write", [data_urls, structs])
def test_slimes_names_name_the_same_rows(write: Any, tmp_path: Path) -> None:
    custom = tmp_path / "custom.yaml"
    custom.write_text("max_turns: 3\nrollout_interaction_env_path: geo_multi_turn\n")
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"run: {tmp_path / 'run'}\nhf_checkpoint: models/tiny-vlm\nrollout_max_response_len: 4096\n")
    names = ["input_key=problem", "label_key=answer", 'multimodal_keys={"image": "images"}', "rollout_shuffle=false"]
    config = Config.load(
        settings,
        [f"custom_config_path={custom}", f"prompt_data={write(tmp_path)}", *names, "rollout_max_context_len=8192"],
    )

    assert (config.environment.path, config.rollout.max_turns) == ("geo_multi_turn", 3)
    prompts = open_prompts(config, SimpleNamespace(prompt=None), SimpleNamespace())
    for index, (problem, answer, _) in enumerate(rows()):
        row = prompts.row(index)
        (message,) = row.prompt
        assert [part["type"] for part in message["content"]] == ["image", "text"]
        assert message["content"][1]["text"] == problem.removeprefix("<image>")
        assert row.label == answer
