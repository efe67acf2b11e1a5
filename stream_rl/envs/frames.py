"""Small pictures of coloured cells, and the observations that show them.

A drawing is a pure function of what it shows, and equal ones are one object: an image that many episodes show is
encoded once. Nobody may change it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from PIL import Image, ImageDraw

from stream_rl.envs.base import Observation

__all__ = ["Colour", "blank_frame", "cells", "shown"]

Colour = tuple[int, int, int]
Cell = tuple[int, int]


def shown(frame: Image.Image, text: str = "") -> Observation:
    """The observation of a frame, with text after it if there is any."""
    observation = {"multi_modal_data": {"image": [frame]}}
    return {**observation, "obs_str": text} if text else observation


@functools.lru_cache(maxsize=64)
def blank_frame(side: int) -> Image.Image:
    """A black frame of `side` pixels: what an agent is shown that must do without sight."""
    return Image.new("RGB", (side, side))


def cells(
    side: int, count: int, squares: Mapping[Cell, Colour], dots: Mapping[Cell, Colour] | None = None
) -> Image.Image:
    """A black RGB frame of `side` pixels with `count` cells a side; (row, column) cells are filled, or hold a dot."""
    return _cells(side, count, tuple(squares.items()), tuple((dots or {}).items()))


@functools.lru_cache(maxsize=4096)
def _cells(
    side: int, count: int, squares: tuple[tuple[Cell, Colour], ...], dots: tuple[tuple[Cell, Colour], ...]
) -> Image.Image:
    frame = Image.new("RGB", (side, side))
    draw = ImageDraw.Draw(frame)
    for cell, colour in squares:
        draw.rectangle(_box(side, count, cell), fill=colour)
    for cell, colour in dots:
        draw.ellipse(_box(side, count, cell), fill=colour)
    return frame


def _box(side: int, count: int, cell: Cell) -> tuple[int, int, int, int]:
    """left, top, right, bottom, all inside the cell."""
    row, column = cell
    return (
        column * side // count,
        row * side // count,
        (column + 1) * side // count - 1,
        (row + 1) * side // count - 1,
    )
