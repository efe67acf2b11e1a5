"""What a sweep shows: reward against steps and against seconds, each bound and variant with its spread over seeds."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from stream_rl.metrics.figure import COLOURS, Trace, axes, page, trace
from stream_rl.metrics.run_folder import step_seconds, surviving_steps
from stream_rl.metrics.summary import WINDOW, moving_mean
from stream_rl.tuning.sweep import Cell

__all__ = ["Curve", "Row", "cells_of", "curve_of", "heads_of", "rows_of", "write_sweep"]

POINTS = 200
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """One run: float64 (steps,) each. `seconds` since its first step began, pauses between starts left out."""

    label: str
    seed: int
    seconds: Floats
    reward: Floats
    lag: float


@dataclass(frozen=True, slots=True)
class Row:
    """All seeds of one bound and variant: means, and the smallest and largest over seeds.

    `last` is the mean reward of the last 5 steps, `best` that of the best 5 in a row; `seconds_to` those until the mean
    of 5 steps reached the target, for the seeds that did, `reached` of `seeds`.
    """

    label: str
    seeds: int
    steps: int
    last: float
    last_least: float
    last_most: float
    best: float
    seconds: float
    seconds_to: float | None
    steps_to: float | None
    reached: int
    lag: float


def curve_of(cell: Cell) -> Curve | None:
    """What the run has logged so far; None before its first step."""
    steps = surviving_steps(cell.folder / "steps.jsonl")
    if not steps:
        return None
    seconds = np.cumsum([step_seconds(step) for step in steps])
    reward = np.array([step["reward_mean"] for step in steps], np.float64)
    lag = float(np.mean([step["token_lag_mean"] for step in steps]))
    return Curve(cell.label, cell.seed, seconds, reward, lag)


def rows_of(curves: Sequence[Curve], target: float) -> list[Row]:
    """One row a label, in the order of the curves."""
    by_label: dict[str, list[Curve]] = {}
    for curve in curves:
        by_label.setdefault(curve.label, []).append(curve)
    return [_row(label, of_label, target) for label, of_label in by_label.items()]


def _row(label: str, curves: Sequence[Curve], target: float) -> Row:
    smooth = [np.array(moving_mean(curve.reward.tolist(), WINDOW)) for curve in curves]
    last = [float(means[-1]) for means in smooth]
    full = [means[min(WINDOW, len(means)) - 1 :] for means in smooth]
    hits = [(curve, int(np.argmax(means >= target))) for curve, means in zip(curves, smooth, strict=True)
            if (means >= target).any()]  # fmt: skip
    return Row(
        label, len(curves), min(len(curve.reward) for curve in curves), _mean(last), min(last), max(last),
        _mean([float(means.max()) for means in full]), _mean([float(curve.seconds[-1]) for curve in curves]),
        _mean([float(curve.seconds[at]) for curve, at in hits]) if hits else None,
        _mean([at + 1 for _, at in hits]) if hits else None, len(hits), _mean([curve.lag for curve in curves]),
    )  # fmt: skip


def write_sweep(folder: Path, cells: Sequence[Cell], target: float) -> list[Row]:
    """Writes sweep.json and sweep.html of what has been trained so far; the rows. Raises OSError."""
    curves = [curve for cell in cells if (curve := curve_of(cell)) is not None]
    rows = rows_of(curves, target)
    runs = [{"folder": cell.folder.name, "label": cell.label, "seed": cell.seed, "overrides": cell.overrides}
            for cell in cells]  # fmt: skip
    tree = {"target": target, "rows": [asdict(row) for row in rows], "runs": runs}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.json").write_bytes(orjson.dumps(tree, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    (folder / "sweep.html").write_text(_page(folder.name, rows, curves, target), encoding="utf-8")
    return rows


def band(curves: Sequence[Curve], over: str, colour: str) -> list[Trace]:
    """The mean of all seeds over `steps` or `seconds`, as far as every seed has come, and their spread behind it."""
    smooth = [moving_mean(curve.reward.tolist(), WINDOW) for curve in curves]
    places = [np.arange(1, len(curve.reward) + 1) if over == "steps" else curve.seconds for curve in curves]
    end = min(float(place[-1]) for place in places)
    start = max(float(place[0]) for place in places)
    x = np.linspace(start, end, min(POINTS, max(len(place) for place in places)))
    values = np.array([np.interp(x, place, means) for place, means in zip(places, smooth, strict=True)])
    spread = {
        "type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False,
        "x": [*x.tolist(), *x[::-1].tolist()], "fill": "toself", "fillcolor": _pale(colour),
        "y": [*values.max(axis=0).tolist(), *values.min(axis=0)[::-1].tolist()],
    }  # fmt: skip
    return [spread, trace(x.tolist(), values.mean(axis=0).tolist(), curves[0].label, colour, 2.2)]


def _page(name: str, rows: Sequence[Row], curves: Sequence[Curve], target: float) -> str:
    figures = []
    for over, unit in (("steps", "step"), ("seconds", "seconds of training")):
        traces: list[Trace] = []
        for number, row in enumerate(rows):
            mine = [curve for curve in curves if curve.label == row.label]
            traces += band(mine, over, COLOURS[number % len(COLOURS)])
        figures.append({"data": traces, "layout": axes(unit, f"reward, mean of {WINDOW} steps")})
    table = "".join(f"<th>{html.escape(head)}</th>" for head in heads_of(target))
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells_of(row))}</tr>" for row in rows)
    return page(
        f"{name} · sweep",
        "body{max-width:1200px;margin:24px auto;color:#1c2733}.plot{height:420px}"
        "td,th{padding:6px 12px;text-align:left;border-top:1px solid #e3e8ef}table{border-collapse:collapse}",
        f"<h1>{html.escape(name)}</h1><p>Lines are means over seeds, bands their smallest and largest.</p>"
        f"<table><tr>{table}</tr>{body}</table><div class=plot id=p0></div><div class=plot id=p1></div>",
        figures,
    )


def heads_of(target: float) -> list[str]:
    """The columns' names."""
    return [
        "", "seeds", "steps", f"reward, last {WINDOW}", "over seeds", f"best {WINDOW}", f"steps to {target:g}",
        f"seconds to {target:g}", "reached", "token lag", "seconds",
    ]  # fmt: skip


def cells_of(row: Row) -> list[str]:
    """One row as text."""
    return [
        row.label, str(row.seeds), str(row.steps), f"{row.last:.3f}", f"{row.last_least:.3f} to {row.last_most:.3f}",
        f"{row.best:.3f}", _or_dash(row.steps_to), _or_dash(row.seconds_to), f"{row.reached} of {row.seeds}",
        f"{row.lag:.2f}", f"{row.seconds:.0f}",
    ]  # fmt: skip


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _pale(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
