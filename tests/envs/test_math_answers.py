r"""Short mathematical answers: the same number in any form is the same answer."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.envs.math_answers import final_answer, same_answer, value


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("20", 20.0),
        ("-3.5", -3.5),
        ("1,250", 1250.0),
        (r"3 \sqrt { 5 }", 3 * math.sqrt(5)),
        ("3*sqrt(5)", 3 * math.sqrt(5)),
        (r"\frac { 13 } { 2 }", 6.5),
        (r"\sqrt{2}/2 + 1", math.sqrt(2) / 2 + 1),
        (r"49 \pi", 49 * math.pi),
        ("2^3", 8.0),
        ("-2^2", -4.0),
        ("2(3 - 1)", 4.0),
        ("x = 12", 12.0),
        (r"\angle A = 30", 30.0),
        (r"45^\circ", 45.0),
        (r"60^{\circ}", 60.0),
        ("45°", 45.0),
        ("45 degrees", 45.0),
        ("12.5 cm", 12.5),
        ("24 cm^2", 24.0),
        ("24 m²", 24.0),
        ("30 square units", 30.0),
        ("$7$.", 7.0),
    ],
)
def test_a_number_is_read_in_every_form(text: str, number: float) -> None:
    assert value(text) == pytest.approx(number)


@pytest.mark.parametrize(
    "text",
    ["", "yes", "5x", "1 2", "((3)", "(3}", "3)", "1/0", "10^1000", "9^9^9^9", "(-1)^0.5", "sqrt", "1" * 200, "(" * 90],
)
def test_what_is_no_number_has_no_value(text: str) -> None:
    assert value(text) is None


@given(st.text(alphabet="0123456789.+-*/^(){} \\sqrtfacpi°", max_size=120))
def test_no_text_breaks_the_reading(text: str) -> None:
    found = value(text)
    assert found is None or math.isfinite(found)


@given(st.floats(-1e6, 1e6).map(lambda number: round(number, 3)), st.integers(1, 99))
def test_a_sum_is_read_as_python_reads_it(number: float, other: int) -> None:
    assert value(f"{number:f} + {other}") == pytest.approx(number + other)


@pytest.mark.parametrize(
    ("given_answer", "reference", "same"),
    [
        ("12.68", "12.7", True),
        ("12.6", "12.7", False),
        ("36.06", "36.1", True),
        ("20.0001", "20", True),
        ("19.9", "20", False),
        (r"\frac{1}{2}", "0.5", True),
        (r"7\pi", r"49\pi", False),
        ("21.99", r"7\pi", True),
        ("A", "a", True),
        (r"\text{yes}", "yes", True),
        ("yes", "3", False),
        ("", "", False),
    ],
)
def test_an_answer_is_as_exact_as_the_reference(given_answer: str, reference: str, same: bool) -> None:
    assert same_answer(given_answer, reference) is same


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{\frac{1}{2}}, surely", r"\frac{1}{2}"),
        (r"\boxed{1} or rather \boxed{ 2 }", "2"),
        ("it is 12, or 1,250.5.", "1,250.5"),
        ("a = -3", "-3"),
        (r"\boxed{unclosed", None),
        ("no idea", None),
    ],
)
def test_the_final_answer_is_the_last_box_or_the_last_number(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer
