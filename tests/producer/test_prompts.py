"""Which prompt has which index, and what is wrong with a dataset."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.config import DataConfig
from stream_rl.errors import DataError, ModelError
from stream_rl.multimodal.reading import LONGEST_PATH
from stream_rl.producer.dataset_rows import MISSING
from stream_rl.producer.loading import check_rollout, load_rollout
from stream_rl.producer.prompt_images import with_images
from stream_rl.producer.prompts import DatasetPrompts, GeneratedPrompts, PromptRow


class Listed(list):
    """Rows in memory."""

    files = ()

    def column(self, name):
        return [row.get(name, MISSING) for row in self]

    def place(self, number):
        return f"row {number + 1}"


def dataset(rows: int, **settings) -> DatasetPrompts:
    return DatasetPrompts(Listed({"prompt": f"p{n}", "label": n} for n in range(rows)), DataConfig(**settings), 3)


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


def test_a_system_prompt_stands_before_prompts_that_have_none():
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "q"}]

    assert [m["role"] for m in PromptRow("q").messages("be brief")] == ["system", "user"]
    assert PromptRow(own).messages("be brief") == own


async def test_a_prompt_longer_than_its_budget_names_the_setting(config):
    with pytest.raises(DataError, match=r"9 tokens leaves no room within rollout\.max_context_len=9"):
        await check_rollout(config(**{"rollout.max_context_len": 9}))


GROWING = """
from stream_rl.envs.guess_number import build_env


def prompt(seed, index, args):
    if index >= args.ends:
        raise IndexError(index)
    return {"prompt": "guess" + " guess" * (20 if index == args.long else index % 3), "label": 1}
"""


@pytest.fixture
def growing(config, tmp_path):
    """`growing(long=..., ends=..., steps=...)`: settings whose environment's prompt `long` is too long."""
    (tmp_path / "growing.py").write_text(GROWING)

    def make(*, long, ends=1000, steps=100):
        return config(**{
            "environment.path": str(tmp_path / "growing.py"), "environment.args": {"long": long, "ends": ends},
            "rollout.max_context_len": 24, "trainer.steps": steps,
        })  # fmt: skip

    return make


async def test_a_later_generated_prompt_that_is_too_long_is_found_before_a_run(growing):
    with pytest.raises(DataError, match=r"a prompt of 29 tokens leaves no room within rollout\.max_context_len=24"):
        await check_rollout(growing(long=63))


async def test_of_generated_prompts_only_those_that_the_run_needs_are_made(growing):
    await check_rollout(growing(long=64))
    await check_rollout(growing(long=4, ends=4, steps=2))  # of two groups each
    with pytest.raises(DataError, match=r"prompt\(\d+, 4, args\) of the environment fails: IndexError: 4"):
        await check_rollout(growing(long=4, ends=4, steps=3))


def test_held_out_prompts_come_from_another_stream(config):
    settings = config()
    training, held_out = load_rollout(settings).prompts, load_rollout(settings, held_out=True).prompts

    assert [training.row(n).label for n in range(50)] != [held_out.row(n).label for n in range(50)]


def test_a_prompt_that_is_too_long_is_found_wherever_it_stands(config, tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "guess " * (200 if n == 37 else 1), "label": 1} for n in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    with pytest.raises(DataError, match=r"leaves no room within rollout\.max_context_len"):
        asyncio.run(check_rollout(config(**{"data.path": str(path), "rollout.max_context_len": 100})))


def test_a_field_may_have_any_name_and_the_rows_number_takes_none():
    row = DatasetPrompts(Listed([{"prompt": "a"}, {"prompt": "b", "row": "mine"}]), DataConfig(shuffle=False), 0).row(1)
    assert (row.metadata, row.number) == ({"row": "mine"}, 2)


def test_the_longest_rows_come_first():
    source = DatasetPrompts(Listed({"prompt": "x" * length} for length in (1, 5, 3)), DataConfig(), 0)

    assert [row.prompt for row in source.longest(2)] == ["xxxxx", "xxx"]


@pytest.mark.parametrize(
    "prompt", [5, None, "", [], [{"role": "user"}], [{"role": 3, "content": "a"}], [{"role": "user", "content": None}]]
)
def test_what_is_no_prompt_is_refused_from_a_file_and_from_an_environment(prompt):
    with pytest.raises(DataError, match="field 'prompt' must be text or a list of chat messages"):
        DatasetPrompts(Listed([{"prompt": prompt}]), DataConfig(), 0)
    with pytest.raises(DataError, match=r"prompt\(3, 7, args\) of the environment must give a 'prompt'"):
        GeneratedPrompts(lambda seed, index, args: {"prompt": prompt}, 3, SimpleNamespace()).row(7)


def test_an_answer_that_only_calls_tools_may_stand_in_a_prompt():
    prompt = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": []}]

    assert DatasetPrompts(Listed([{"prompt": prompt}]), DataConfig(), 0).row(0).prompt == prompt


@pytest.mark.parametrize("name", ["label", "level"])
def test_a_label_or_field_that_no_record_can_hold_names_row_and_field(name):
    """Else a bare ValueError of the first commit, or a resumed environment that is given something else."""
    rows = Listed([{"prompt": "a", "label": 1, "level": 1}, {"prompt": "b", "label": 1, "level": 1, name: math.nan}])

    with pytest.raises(DataError, match=rf"^row 2: field '{name}' holds nan \(float\), which JSON cannot"):
        DatasetPrompts(rows, DataConfig(shuffle=False), 0).row(1)
    with pytest.raises(DataError, match=rf"^prompt\(3, 7, args\) of .*: field '{name}' holds b'x' \(bytes\)"):
        GeneratedPrompts(lambda seed, index, args: {"prompt": "q", name: b"x"}, 3, SimpleNamespace()).row(7)


class TestMarks:
    """`<image>` in a row's text."""

    def test_without_a_field_of_images_they_are_text_and_the_first_such_row_is_named_once(self, caplog):
        rows = Listed(
            [{"prompt": "a"}, {"prompt": "<image> b"}, {"prompt": [{"role": "user", "content": "c <image>"}]}]
        )
        source = DatasetPrompts(rows, DataConfig(shuffle=False), 0)

        assert [source.row(number).prompt for number in (0, 1)] == ["a", "<image> b"]
        (warning,) = caplog.messages
        assert "2 of 3 prompts have the mark <image>, the first in row 2, and data.image_field is not set" in warning

    def test_rows_without_any_are_not_spoken_of(self, caplog):
        DatasetPrompts(Listed([{"prompt": "a"}]), DataConfig(), 0)

        assert not caplog.messages

    @pytest.mark.parametrize("images", [None, []])
    def test_with_a_field_that_this_row_leaves_empty_they_name_the_row(self, images):
        rows = Listed([{"prompt": "<image> b", "images": images}])

        with pytest.raises(DataError, match="row 1 has 1 marks <image> for 0 images"):
            DatasetPrompts(rows, DataConfig(image_field="images"), 0).row(0)

    def test_a_field_of_images_that_no_row_has_names_the_nearest(self):
        rows = Listed([{"prompt": "a", "images": []}])

        with pytest.raises(DataError, match=r"no row of .* data\.image_field='image': did you mean 'images'\?"):
            DatasetPrompts(rows, DataConfig(image_field="image"), 0)

    def test_one_that_only_later_rows_have_will_do(self):
        rows = Listed([{"prompt": "a"}, {"prompt": "<image> b", "images": ["i.png"]}])

        assert DatasetPrompts(rows, DataConfig(image_field="images", shuffle=False), 0).row(0).prompt == "a"


def test_an_environments_prompt_that_fails_is_named():
    with pytest.raises(DataError, match=r"prompt\(0, 0, args\) of the environment fails: ZeroDivisionError"):
        GeneratedPrompts(lambda seed, index, args: {"prompt": 1 / 0}, 0, SimpleNamespace()).row(0)


@pytest.mark.parametrize(("length", "where"), [(LONGEST_PATH, "/data/"), (LONGEST_PATH + 1, "")])
def test_an_image_that_is_a_path_starts_at_the_datasets_folder(length, where):
    (message,) = with_images("q", "i" * length, "row 1", Path("/data"))

    assert message["content"][0]["image"] == where + "i" * length


@pytest.mark.parametrize("tools", [3, [{"a": 1}], ["search"], {"function": 1}])
def test_tools_that_are_no_schemas_are_refused(config, tools):
    with pytest.raises(ModelError, match=r"model\.template_args\.tools must be a list of tool schemas"):
        load_rollout(config(**{"model.template_args": {"tools": tools}}))


def test_a_chat_template_that_is_no_text_is_refused(config, tmp_path):
    (tmp_path / "bad.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"model\.chat_template='.*' is no text"):
        load_rollout(config(**{"model.chat_template": str(tmp_path / "bad.jinja")}))
