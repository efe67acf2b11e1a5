"""What a row hands to its environment is kept as it is, or refused by its field."""

from __future__ import annotations

import datetime

import pytest

from stream_rl.producer.row_values import not_to_be_kept


def test_rows_of_plain_values_are_kept() -> None:
    assert not_to_be_kept({"label": 3, "answers": ["a", {"b": None}]}) is None


@pytest.mark.parametrize("value", [b"png", float("nan"), datetime.date(2026, 1, 1), {1: 2}])
@pytest.mark.parametrize("wrap", [lambda odd: odd, lambda odd: [0, odd], lambda odd: {"b": {"c": (odd,)}}])
def test_anything_else_names_its_field_and_value(value: object, wrap: object) -> None:
    reason = not_to_be_kept({"a": 1, "when": wrap(value)})

    assert reason is not None
    assert reason.startswith("field 'when' holds ")
    assert "data.image_field" in reason
