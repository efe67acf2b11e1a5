"""Questions about a drawn figure: the numbers that the answer needs stand in the figure alone.

`question` is a pure function of its seed. Figures are drawn to scale, turned and mirrored by chance, in black on white.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from PIL import Image, ImageDraw, ImageFont

__all__ = ["KINDS", "Figure", "Question", "question"]

Point = tuple[float, float]
TRIPLES = ((3, 4, 5), (5, 12, 13), (8, 15, 17), (7, 24, 25), (20, 21, 29))
MARGIN = 0.16
TEXT_SIZE = 0.08
LABEL_GAP = 0.1


@dataclass(slots=True)
class Figure:
    """What is drawn, in coordinates of its own: lines, circles (middle, radius), labels (place, text)."""

    lines: list[tuple[Point, Point]] = field(default_factory=list)
    circles: list[tuple[Point, float]] = field(default_factory=list)
    labels: list[tuple[Point, str]] = field(default_factory=list)

    def polygon(self, corners: Sequence[Point]) -> None:
        """Draws the sides between the corners."""
        self.lines += list(zip(corners, [*corners[1:], corners[0]], strict=True))

    def side(self, one: Point, other: Point, away_from: Point, text: str) -> None:
        """Writes beside the middle of a side, away from a point."""
        middle = _between(one, other, 0.5)
        gap = LABEL_GAP * self.extent() / (math.dist(middle, away_from) or 1.0)
        self.labels.append((_between(away_from, middle, 1.0 + gap), text))

    def extent(self) -> float:
        """The longest side of what encloses lines and circles."""
        points = self.outline()
        rights, ups = [right for right, _ in points], [up for _, up in points]
        return max(max(rights) - min(rights), max(ups) - min(ups))

    def outline(self) -> list[Point]:
        """Points that enclose lines and circles."""
        points = [point for line in self.lines for point in line]
        for (right, up), radius in self.circles:
            points += [(right - radius, up - radius), (right + radius, up + radius)]
        return points


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the answer as `math_answers` reads it, and the figure."""

    kind: str
    text: str
    answer: str
    figure: Figure
    turn: float
    mirrored: bool

    def draw(self, side: int, *, blank: bool = False) -> Image.Image:
        """An RGB image of `side` pixels; white if blank."""
        image = Image.new("RGB", (side, side), "white")
        if not blank:
            _draw(image, self.figure, self._moved)
        return image

    def _moved(self, point: Point) -> Point:
        right, up = -point[0] if self.mirrored else point[0], point[1]
        cosine, sine = math.cos(self.turn), math.sin(self.turn)
        return right * cosine - up * sine, right * sine + up * cosine


def question(seed: str) -> Question:
    """The question of this seed, of one of the `KINDS`."""
    chance = random.Random(seed)
    kind = chance.choice(list(KINDS))
    text, answer, figure = KINDS[kind](chance)
    return Question(kind, text, answer, figure, chance.uniform(0, 2 * math.pi), chance.random() < 0.5)


def _triangle_angle(chance: random.Random) -> tuple[str, str, Figure]:
    one, other = chance.randint(30, 80), chance.randint(30, 80)
    corners = _triangle(one, other)
    figure = Figure()
    figure.polygon(corners)
    middle = _centre(corners)
    for corner, text in zip(corners, (f"{one}°", f"{other}°", "x"), strict=True):
        figure.labels.append((_between(corner, middle, 0.38), text))
    return "How many degrees has the angle x?", str(180 - one - other), figure


def _isosceles_angle(chance: random.Random) -> tuple[str, str, Figure]:
    base = chance.randint(31, 74)
    corners = _triangle(base, base)
    figure = Figure()
    figure.polygon(corners)
    middle = _centre(corners)
    figure.labels += [
        (_between(corners[0], middle, 0.38), "x"),
        (_between(corners[2], middle, 0.38), f"{180 - 2 * base}°"),
    ]
    for lower in corners[:2]:
        figure.side(lower, corners[2], middle, "a")
    return "The sides marked a are equally long. How many degrees has the angle x?", str(base), figure


def _angle_on_a_line(chance: random.Random) -> tuple[str, str, Figure]:
    known = chance.randint(35, 145)
    ray = math.radians(known)
    half = math.radians(known + (180 - known) / 2)
    figure = Figure(lines=[((-1, 0), (1, 0)), ((0, 0), (math.cos(ray), math.sin(ray)))])
    figure.labels += [((0.35 * math.cos(ray / 2), 0.35 * math.sin(ray / 2)), f"{known}°")]
    figure.labels += [((0.35 * math.cos(half), 0.35 * math.sin(half)), "x")]
    return "The long line is straight. How many degrees has the angle x?", str(180 - known), figure


def _right_triangle_side(chance: random.Random) -> tuple[str, str, Figure]:
    scale = chance.randint(1, 4)
    lengths = [scale * side for side in chance.choice(TRIPLES)]
    corners = [(0.0, 0.0), (float(lengths[0]), 0.0), (0.0, float(lengths[1]))]
    asked = chance.randrange(3)
    answer, names = lengths[asked], [str(length) for length in lengths]
    names[asked] = "x"
    figure = Figure()
    figure.polygon(corners)
    square = 0.08 * min(lengths[:2])
    figure.lines += [((square, 0), (square, square)), ((square, square), (0, square))]
    for (one, other), name in zip(((0, 1), (0, 2), (1, 2)), names, strict=True):
        figure.side(corners[one], corners[other], _centre(corners), name)
    return "The triangle has a right angle. How long is x?", str(answer), figure


def _triangle_area(chance: random.Random) -> tuple[str, str, Figure]:
    base, height, foot = chance.randint(6, 20), chance.randint(5, 16), chance.uniform(0.3, 0.7)
    corners = [(0.0, 0.0), (float(base), 0.0), (foot * base, float(height))]
    figure = Figure(lines=[(corners[2], (foot * base, 0.0))])
    figure.polygon(corners)
    figure.side(corners[0], corners[1], corners[2], str(base))
    figure.labels.append(((foot * base + 0.08 * base, 0.35 * height), str(height)))
    return "What is the area of the large triangle?", f"{base * height / 2:g}", figure


def _rectangle(chance: random.Random) -> tuple[int, int, Figure]:
    width, height = chance.randint(5, 20), chance.randint(3, 12)
    corners = [(0.0, 0.0), (float(width), 0.0), (float(width), float(height)), (0.0, float(height))]
    figure = Figure()
    figure.polygon(corners)
    for one, other, length in ((0, 1, width), (1, 2, height)):
        figure.side(corners[one], corners[other], _centre(corners), str(length))
    return width, height, figure


def _rectangle_area(chance: random.Random) -> tuple[str, str, Figure]:
    width, height, figure = _rectangle(chance)
    return "What is the area of the rectangle?", str(width * height), figure


def _rectangle_perimeter(chance: random.Random) -> tuple[str, str, Figure]:
    width, height, figure = _rectangle(chance)
    return "What is the perimeter of the rectangle?", str(2 * (width + height)), figure


def _circle_area(chance: random.Random) -> tuple[str, str, Figure]:
    radius = chance.randint(2, 20)
    figure = Figure(lines=[((0, 0), (radius, 0))], circles=[((0, 0), radius)])
    figure.labels.append(((0.5 * radius, 0.16 * radius), str(radius)))
    return r"What is the area of the circle? Write it with \pi.", rf"{radius**2}\pi", figure


KINDS: dict[str, Callable[[random.Random], tuple[str, str, Figure]]] = {
    "triangle_angle": _triangle_angle,
    "isosceles_angle": _isosceles_angle,
    "angle_on_a_line": _angle_on_a_line,
    "right_triangle_side": _right_triangle_side,
    "triangle_area": _triangle_area,
    "rectangle_area": _rectangle_area,
    "rectangle_perimeter": _rectangle_perimeter,
    "circle_area": _circle_area,
}
"""By name, what makes (question, answer, figure) of one kind."""


def _triangle(one: float, other: float) -> list[Point]:
    """Corners of a triangle on a base of length 1 with these degrees at its ends."""
    left, right = math.tan(math.radians(one)), math.tan(math.radians(other))
    foot = right / (left + right)
    return [(0.0, 0.0), (1.0, 0.0), (foot, foot * left)]


def _centre(corners: Sequence[Point]) -> Point:
    return sum(x for x, _ in corners) / len(corners), sum(y for _, y in corners) / len(corners)


def _between(one: Point, other: Point, share: float) -> Point:
    return one[0] + share * (other[0] - one[0]), one[1] + share * (other[1] - one[1])


def _draw(image: Image.Image, figure: Figure, moved: Callable[[Point], Point]) -> None:
    side, draw = image.width, ImageDraw.Draw(image)
    lines = [(moved(one), moved(other)) for one, other in figure.lines]
    circles = [(moved(middle), radius) for middle, radius in figure.circles]
    corners = Figure(lines, circles).outline()
    low = [min(point[axis] for point in corners) for axis in (0, 1)]
    high = [max(point[axis] for point in corners) for axis in (0, 1)]
    scale = side * (1 - 2 * MARGIN) / max(high[0] - low[0], high[1] - low[1])

    def pixel(point: Point) -> Point:
        x, y = (side / 2 + scale * (point[axis] - (low[axis] + high[axis]) / 2) for axis in (0, 1))
        return x, side - y

    for one, other in lines:
        draw.line((pixel(one), pixel(other)), fill="black", width=max(side // 120, 1))
    for middle, radius in circles:
        (x, y), reach = pixel(middle), radius * scale
        draw.ellipse((x - reach, y - reach, x + reach, y + reach), outline="black", width=max(side // 120, 1))
    font = ImageFont.load_default(size=TEXT_SIZE * side)
    for place, text in figure.labels:
        at = pixel(moved(place))  # white around it keeps it readable where it touches a line
        draw.text(at, text, fill="black", font=font, anchor="mm", stroke_width=side // 100, stroke_fill="white")
