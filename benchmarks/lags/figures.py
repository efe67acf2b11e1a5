"""What the curves say: the table, the bars, and a page with the plot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
from measures.bars import Bar
from rich.table import Table

from lags.training import CORRECTIONS, Curve
from stream_rl.metrics.figure import BLUE, ROSE, TEAL, Trace, page
from stream_rl.metrics.summary import WINDOW, moving_mean
from stream_rl.tuning import sweep_report

__all__ = ["bars_of", "curves_page", "table"]

JUDGED_LAG = 2
CORRECTED, UNCORRECTED = 0.60, 0.35
COLOURS = dict(zip(CORRECTIONS, (ROSE, BLUE, TEAL), strict=True))


def last(curve: Curve) -> float:
    """Mean reward of the final steps."""
    return moving_mean(curve.rewards, WINDOW)[-1]


def best(curve: Curve) -> float:
    """Mean reward of the best steps in a row."""
    return max(moving_mean(curve.rewards, WINDOW)[WINDOW - 1 :])


def table(curves: Sequence[Curve]) -> Table:
    """A row for each lag and correction, seeds in their order."""
    heads = ("lag", "correction", f"last {WINDOW} steps, by seed", "mean", f"best {WINDOW} steps, by seed", "mean",
             "clipped", "seconds")  # fmt: skip
    shown = Table(*heads, title="Mean reward, lag held")
    for (lag, correction), cell in _cells(curves):
        figures = ([last(curve) for curve in cell], [best(curve) for curve in cell])
        columns = [text for values in figures for text in (" ".join(f"{one:.2f}" for one in values), _mean(values))]
        clipped = f"{np.mean([curve.clipped for curve in cell]):.1%}"
        seconds = f"{np.mean([curve.seconds for curve in cell]):.0f}"
        shown.add_row(str(lag), correction, *columns, clipped, seconds)
    return shown


def bars_of(curves: Sequence[Curve]) -> list[Bar]:
    """At a lag of two steps: what learns with a correction does not without. Each seed's last steps, as one mean."""
    bars = []
    for (lag, correction), cell in _cells(curves):
        if lag == JUDGED_LAG:
            reward = [math.fsum(map(last, cell)) / len(cell)]
            claim = f"lag {lag}, correction {correction}: reward, mean of {len(cell)} seeds"
            missing = correction == "none"
            bars.append(Bar(claim, reward, most=UNCORRECTED) if missing else Bar(claim, reward, least=CORRECTED))
    return bars


def curves_page(curves: Sequence[Curve]) -> str:
    """Reward against steps as HTML that needs no network: a plot for each lag, means over seeds in their spread."""
    traces: list[Trace] = []
    lags = sorted({curve.run.lag for curve in curves})
    columns = min(len(lags), 2)
    grid = {"rows": math.ceil(len(lags) / columns), "columns": columns, "pattern": "independent"}
    layout: dict[str, object] = {
        "grid": {**grid, "xgap": 0.12, "ygap": 0.16},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"}, "margin": {"t": 40, "r": 20, "b": 50, "l": 60},
    }  # fmt: skip
    titles = []
    for number, lag in enumerate(lags, start=1):
        for (at, correction), cell in _cells(curves):
            if at == lag:
                traces += _lines(cell, COLOURS[correction], number)
        layout[f"xaxis{number}"] = {"title": {"text": "step"}}
        layout[f"yaxis{number}"] = {"title": {"text": f"reward, mean of {WINDOW} steps"}, "range": [0, 1.02]}
        titles.append({
            "text": f"<b>lag {lag}</b>", "showarrow": False, "x": 0.02, "y": 1.0,
            "xref": f"x{number} domain", "yref": f"y{number} domain",
        })  # fmt: skip
    figure = {"data": traces, "layout": {**layout, "annotations": titles}}
    style = "body{margin:0}#p0{height:100vh}"
    return page("What lag costs in learning", style, "<div id=p0></div>", [figure])


def _lines(cell: Sequence[Curve], colour: str, number: int) -> list[Trace]:
    label = cell[0].run.correction
    seen = [
        sweep_report.Curve(label, curve.run.seed, np.zeros(0), np.array(curve.rewards), curve.run.lag) for curve in cell
    ]
    spread, mean = sweep_report.band(seen, "steps", colour)
    place = {"xaxis": f"x{number}", "yaxis": f"y{number}", "legendgroup": label}
    return [{**spread, **place}, {**mean, **place, "showlegend": number == 1}]


def _cells(curves: Sequence[Curve]) -> Iterable[tuple[tuple[int, str], list[Curve]]]:
    """Curves of one lag and correction, in the order of lags and CORRECTIONS."""
    order = list(CORRECTIONS)
    ranked = sorted(curves, key=lambda curve: (curve.run.lag, order.index(curve.run.correction), curve.run.seed))
    grouped = itertools.groupby(ranked, key=lambda curve: (curve.run.lag, curve.run.correction))
    return [(key, list(cell)) for key, cell in grouped]


def _mean(values: Sequence[float]) -> str:
    return f"{math.fsum(values) / len(values):.2f}"
