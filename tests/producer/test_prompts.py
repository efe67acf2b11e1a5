"""Which prompt has which index, and what is wrong with a dataset."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.config import DataConfig
from stream_rl.errors import DataError
from stream_rl.producer.loading import check_rollout, load_rollout
from stream_rl.producer.prompts import DatasetPrompts, PromptRow


def dataset(rows: int, **settings) -> DatasetPrompts:
    return DatasetPrompts([{"prompt": f"p{n}", "label": n} for n in range(rows)], DataConfig(**settings), 3)


@given(rows=st.integers(1, 30), epoch=st.integers(0, 5))
def test_every_epoch_has_every_row_once_in_its_own_order(rows, epoch):
    source = dataset(rows)
    labels = [source.row(epoch * rows + place).label for place in range(rows)]

    assert sorted(labels) == list(range(rows))


@given(index=st.integers(0, 1000), other=st.integers(0, 1000))
def test_a_row_depends_on_nothing_but_its_index(index, other):
    """So that a resume neither skips nor repeats a prompt."""
    source = dataset(7)
    source.row(other)

    assert source.row(index) == dataset(7).row(index)


def test_epochs_are_shuffled_differently_unless_told_not_to():
    shuffled, plain = dataset(20), dataset(20, shuffle=False)

    assert [shuffled.row(n).label for n in range(20)] != [shuffled.row(20 + n).label for n in range(20)]
    assert [plain.row(n).label for n in range(40)] == [*range(20), *range(20)]


def test_a_row_without_the_prompt_field_names_row_field_and_the_nearest():
    with pytest.raises(DataError, match=r"row 2 .*data\.prompt_field='prompt': did you mean 'promt'"):
        DatasetPrompts([{"prompt": "a"}, {"promt": "b"}], DataConfig(path="x.jsonl"), 0)


def test_a_system_prompt_stands_before_prompts_that_have_none():
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "q"}]

    assert [m["role"] for m in PromptRow("q").messages("be brief")] == ["system", "user"]
    assert PromptRow(own).messages("be brief") == own


def test_jsonl_and_parquet_give_the_same_rows(config, tmp_path):
    rows = [{"prompt": "guess", "label": n} for n in (1, 2, 3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    sources = [
        load_rollout(config(**{"data.path": str(tmp_path / f"rows.{kind}")})).prompts for kind in ("jsonl", "parquet")
    ]

    assert [sources[0].row(n) for n in range(6)] == [sources[1].row(n) for n in range(6)]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("no.jsonl", None, "is no file"),
        ("rows.csv", "a", "must end with"),
        ("rows.jsonl", "", "has no rows"),
        ("rows.jsonl", '{"prompt": "a"}\n{', "line 2 is not JSON"),
        ("rows.jsonl", "[1]", "line 1 must be an object"),
        ("rows.jsonl", '{"prompt": 3}', "must be text or a list of chat messages"),
        ("rows.parquet", "not parquet", "no Parquet file"),
    ],
)
def test_what_is_wrong_with_a_dataset_is_named(config, tmp_path, name, text, reason):
    if text is not None:
        (tmp_path / name).write_text(text)

    with pytest.raises(DataError, match=reason):
        load_rollout(config(**{"data.path": str(tmp_path / name)}))


async def test_a_prompt_longer_than_its_budget_names_the_setting(config):
    with pytest.raises(DataError, match=r"9 tokens leaves no room within rollout\.max_context_len=9"):
        await check_rollout(config(**{"rollout.max_context_len": 9}))


def test_held_out_prompts_come_from_another_stream(config):
    settings = config()
    training, held_out = load_rollout(settings).prompts, load_rollout(settings, held_out=True).prompts

    assert [training.row(n).label for n in range(50)] != [held_out.row(n).label for n in range(50)]
