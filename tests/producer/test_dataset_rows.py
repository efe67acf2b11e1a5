"""Every kind of dataset gives the same rows, names its file and row when one is wrong, and is known by its content."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stream_rl.config import Config, DataConfig
from stream_rl.errors import DataError
from stream_rl.producer.dataset_rows import ArrowRows, JsonLineRows, digest, open_rows
from stream_rl.producer.loading import load_rollout
from stream_rl.producer.prompts import DatasetPrompts, prompt_basis

ROWS = [{"prompt": f"guess {n}", "label": n, "level": [n, n + 1]} for n in range(5)]
KINDS = ("rows.jsonl", "rows.parquet", "parquet", "splits", "saved", "saved-splits")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `datasets` converts goes into a folder of this test."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def write_parquet(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)


def write(folder: Path, kind: str, rows: list[dict[str, object]] = ROWS) -> DataConfig:
    """The rows as one kind of dataset, whose split "train" they are."""
    path = folder / kind
    match kind:
        case "rows.jsonl":
            path.write_text("\n".join(json.dumps(row) + "\n" for row in rows))  # with empty lines between
        case "rows.parquet":
            write_parquet(path, rows)
        case "parquet":
            write_parquet(path / "part-0.parquet", rows[:3])
            write_parquet(path / "part-1.parquet", rows[3:])
        case "splits":
            write_parquet(path / "data" / "train-00000-of-00001.parquet", rows)
            write_parquet(path / "data" / "test-00000-of-00001.parquet", [{"prompt": "held out"}])
        case "saved":
            datasets.Dataset.from_list(rows).save_to_disk(str(path))
        case _:
            both = {"train": datasets.Dataset.from_list(rows), "test": datasets.Dataset.from_list(rows[:1])}
            datasets.DatasetDict(both).save_to_disk(str(path))
    return DataConfig(path=str(path))


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SAID = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "r", "tool_call_id": "a"},
]
SHOWN = [{"role": "user", "content": [{"type": "text", "text": "go"}, {"type": "image", "image": "a.png"}]}]


@pytest.mark.parametrize("kind", ["rows.jsonl", "rows.parquet", "saved"])
@pytest.mark.parametrize("prompt", [SAID, SHOWN])
def test_a_message_has_no_fields_but_its_own(tmp_path: Path, kind: str, prompt: list[dict[str, object]]) -> None:
    """A table gives each message the fields of all; a template that asks for `tool_calls` or `image` would find one."""
    data = write(tmp_path, kind, [{"prompt": prompt}])
    assert DatasetPrompts(open_rows(data), data, 0).row(0).prompt == prompt


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_a_field_are_counted(tmp_path: Path, kind: str) -> None:
    """Of a list its length, of anything else 1, of null and of a field that is nowhere 0."""
    ones, lists = ["a.png", None, "b.png", "c.png"], [["a.png", "b.png"], [], None, ["c.png"]]
    fields = [{"prompt": "go", "one": one, "list": many} for one, many in zip(ones, lists, strict=True)]
    rows = open_rows(write(tmp_path, kind, fields))
    assert [list(rows.counts(name)) for name in ("one", "list", "none")] == [[1, 0, 1, 1], [2, 0, 0, 1], [0] * 4]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    rows = open_rows(write(tmp_path, kind))
    assert [rows[number] for number in range(len(rows))] == ROWS
    assert list(rows.column("prompt")) == [row["prompt"] for row in ROWS]
    if isinstance(rows, ArrowRows):
        assert rows._dataset.cache_files, "mapped from a file, not loaded"
    source = DatasetPrompts(rows, DataConfig(), 3)
    assert [source.row(n).label for n in range(10)] == [
        DatasetPrompts(open_rows(write(tmp_path, "rows.jsonl")), DataConfig(), 3).row(n).label for n in range(10)
    ]


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("rows.jsonl", "line 7 of data.path='{}'"),
        ("rows.parquet", "row 4 of '{}' (data.path='{}')"),
        ("parquet", "row 1 of '{}/part-1.parquet' (data.path='{}')"),
        ("saved", "row 4 of data.path='{}'"),
    ],
)
def test_a_wrong_row_is_named_by_file_row_and_field(tmp_path: Path, kind: str, place: str) -> None:
    rows = [{**row, "prompt": ""} if number == 3 else row for number, row in enumerate(ROWS)]
    data = write(tmp_path, kind, rows)
    with pytest.raises(DataError) as caught:
        DatasetPrompts(open_rows(data), data, 0)
    where = place.format(data.path, data.path)
    assert str(caught.value) == f"{where}: field 'prompt' must be text or a list of chat messages"


@pytest.mark.parametrize(
    "value", [b"png", datetime.datetime(2026, 1, 1), float("nan"), decimal.Decimal(1)], ids=lambda v: type(v).__name__
)
@pytest.mark.parametrize("name", ["label", "when"])
def test_a_table_may_hold_what_no_record_can_which_names_its_row_and_field(
    tmp_path: Path, name: str, value: object
) -> None:
    data = write(tmp_path, "rows.parquet", [{"prompt": f"guess {n}", name: value} for n in range(3)])
    source = DatasetPrompts(open_rows(data), data.model_copy(update={"shuffle": False}), 0)
    with pytest.raises(DataError, match=rf"^row 2 of '.*rows\.parquet' .*: field '{name}' holds .*, which JSON cannot"):
        source.row(1)


@pytest.mark.parametrize("kind", ["rows.jsonl", "parquet"])
def test_a_row_without_the_prompt_field_names_the_nearest(tmp_path: Path, kind: str) -> None:
    data = write(tmp_path, kind, [{"promt": row["prompt"]} for row in ROWS])
    with pytest.raises(
        DataError, match=r"(line|row) 1 of .* no field data\.prompt_field='prompt': did you mean 'promt'"
    ):
        DatasetPrompts(open_rows(data), data, 0)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("no.jsonl", None, "is no file"),
        ("no.parquet", None, "is no file"),
        ("rows.csv", "a", "must end with"),
        ("rows.jsonl", "", "has no rows"),
        ("rows.jsonl", '{"prompt": "a"}\n{', "line 2 of data.path=.* is not JSON"),
        ("rows.jsonl", "[1]", "line 1 of data.path=.* must be an object"),
        ("rows.jsonl", '{"prompt": 3}', "must be text or a list of chat messages"),
        ("rows.parquet", "not parquet", "cannot be read as a dataset: .*[Pp]arquet"),
        ("folder/notes.txt", "a", "has no field .*did you mean 'text'"),
        ("folder/state.json", "{}", "cannot be read as a dataset"),
    ],
)
def test_what_is_wrong_with_a_dataset_is_named(
    config: Callable[..., Config], tmp_path: Path, name: str, text: str | None, reason: str
) -> None:
    if text is not None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    path = tmp_path / "folder" if name.startswith("folder") else tmp_path / name
    with pytest.raises(DataError, match=reason) as caught:
        load_rollout(config(**{"data.path": str(path)}))
    assert f"data.path={str(path)!r}" in str(caught.value)


@pytest.mark.parametrize("kind", ["splits", "saved-splits"])
def test_a_split_is_chosen_and_one_that_is_not_there_named(tmp_path: Path, kind: str) -> None:
    data = write(tmp_path, kind)
    assert len(open_rows(data.model_copy(update={"split": "test"}))) == 1
    with pytest.raises(DataError, match=r"data\.split='dev' is not in data\.path=.*: it has .*train"):
        open_rows(data.model_copy(update={"split": "dev"}))


@pytest.mark.parametrize("path", ["nobody/nothing", "no-such-name"])
def test_a_name_that_the_hub_does_not_give(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: (_ for _ in ()).throw(OSError("no net")))
    with pytest.raises(DataError, match=f"data.path='{path}' is no file") as caught:
        open_rows(DataConfig(path=path))
    assert ("no net" in str(caught.value)) == ("/" in path)


def test_a_dataset_of_the_hub_is_known_by_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub itself is not here: its builder is played by one over local files."""
    folder = write(tmp_path, "splits").path
    real = datasets.load_dataset_builder

    def play(source: str, **options: object) -> datasets.DatasetBuilder:
        assert (source, options["name"]) == ("owner/name", "main")
        return real(folder)

    monkeypatch.setattr("datasets.load_dataset_builder", play)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    rows = open_rows(DataConfig(path="owner/name", subset="main"))
    assert [rows[n]["label"] for n in range(5)] == [0, 1, 2, 3, 4]
    known = []
    for revision in "ab":
        rows.files = [f"hf://datasets/owner/name@{revision}/data/train-00000-of-00001.parquet"]
        known.append(digest(rows))
    assert known[0] != known[1]


@pytest.fixture
def basis(config: Callable[..., Config]) -> Iterator[Callable[..., dict[str, object]]]:
    return lambda **settings: prompt_basis(config(**settings))


@pytest.mark.parametrize("kind", KINDS)
def test_the_basis_is_the_content_wherever_it_lies(
    tmp_path: Path, kind: str, basis: Callable[..., dict[str, object]]
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "changed").mkdir()
    first, moved, changed = (
        basis(**{"data.path": write(tmp_path / at, kind, rows).path})
        for at, rows in ((".", ROWS), ("other", ROWS), ("changed", [*ROWS[:4], {**ROWS[4], "prompt": "guess 5"}]))
    )
    assert first == moved
    assert {name for name in first if first[name] != changed[name]} == {"data.path"}


def test_the_basis_has_what_moves_prompts_to_other_numbers(
    tmp_path: Path, basis: Callable[..., dict[str, object]]
) -> None:
    path = write(tmp_path, "rows.jsonl").path
    first = basis(**{"data.path": path})
    changes = {"seed": 9, "rollout.groups_per_step": 3, "rollout.group_size": 3, "data.shuffle": False}
    for setting, value in changes.items():
        other = basis(**{"data.path": path, setting: value})
        assert {name for name in first if first[name] != other[name]} == {setting}
    assert basis()["data.path"] is None


def test_lines_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    rows = JsonLineRows(Path(str(write(tmp_path, "rows.jsonl").path)))
    Path(rows.files[0]).write_text("torn")
    with pytest.raises(DataError, match=r"line 1 of data\.path=.* is not JSON"):
        rows[0]
