"""Drawn questions: the figure has what the answer needs, and the text alone has not."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict

import pytest

from stream_rl.envs.geometry_figures import KINDS, Question, question
from stream_rl.envs.math_answers import value

MANY = [question(f"{number}") for number in range(2000)]


def numbers(asked: Question) -> list[float]:
    """What the labels of the figure say, without the names of what is asked."""
    return [float(text.rstrip("°")) for _, text in asked.figure.labels if text.rstrip("°").isdigit()]


def solved(asked: Question) -> float:
    """The answer, by somebody who reads the question and the figure's labels alone."""
    known = numbers(asked)
    if asked.kind == "right_triangle_side":
        places = {text: place for place, text in asked.figure.labels}
        hypotenuse = asked.figure.labels[-1][1]
        assert len(places) == 3
        return math.hypot(*known) if hypotenuse == "x" else math.sqrt(known[-1] ** 2 - known[0] ** 2)
    ways = {
        "triangle_angle": lambda: 180 - sum(known),
        "isosceles_angle": lambda: (180 - known[0]) / 2,
        "angle_on_a_line": lambda: 180 - known[0],
        "triangle_area": lambda: known[0] * known[1] / 2,
        "rectangle_area": lambda: known[0] * known[1],
        "rectangle_perimeter": lambda: 2 * sum(known),
        "circle_area": lambda: known[0] ** 2 * math.pi,
    }
    return ways[asked.kind]()


def test_the_figures_labels_give_every_answer() -> None:
    assert {asked.kind for asked in MANY} == set(KINDS)
    for asked in MANY:
        assert value(asked.answer) == pytest.approx(solved(asked)), asked


def test_figures_are_to_scale() -> None:
    """Where an angle or a length is asked for, measuring the lines gives it too."""
    for asked in MANY[:300]:
        lengths = [math.dist(*line) for line in asked.figure.lines]
        if asked.kind == "triangle_angle":
            one, other, third = sorted(lengths)
            widest = math.degrees(math.acos((one**2 + other**2 - third**2) / (2 * one * other)))
            assert widest == pytest.approx(max(*numbers(asked), float(asked.answer)))
        elif asked.kind == "right_triangle_side":
            known = numbers(asked)
            scale = max(lengths) / max(*known, float(asked.answer))
            assert any(math.isclose(length, scale * float(asked.answer)) for length in lengths)


def test_no_text_tells_the_answer() -> None:
    """Three tries at the likeliest answers to a text are right in less than a quarter of the episodes."""
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for asked in MANY:
        assert not re.search(r"\d", asked.text)
        answers[asked.text][asked.answer] += 1
    right = sum(count for found in answers.values() for _, count in found.most_common(3))
    assert right / len(MANY) < 0.25


def test_a_seed_draws_the_same_picture_and_others_draw_others() -> None:
    assert question("7").draw(96).tobytes() == question("7").draw(96).tobytes()
    assert len({asked.draw(96).tobytes() for asked in MANY[:100]}) >= 95  # a circle has little to turn


def test_pictures_are_black_on_white_within_their_edges() -> None:
    for asked in MANY[:40]:
        picture = asked.draw(224)
        assert (picture.mode, picture.size) == ("RGB", (224, 224))
        edge = [picture.getpixel((x, y)) for x in range(224) for y in (0, 223)]
        edge += [picture.getpixel((x, y)) for y in range(224) for x in (0, 223)]
        assert set(edge) == {(255, 255, 255)}
        assert picture.getextrema() == ((0, 255),) * 3
    assert MANY[0].draw(64, blank=True).getextrema() == ((255, 255),) * 3
