"""The pieces that the report's plots are made of: panels, traces, axes, lines and their names, as Plotly takes them."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from plotly.offline import get_plotlyjs

__all__ = [
    "AMBER",
    "BINS",
    "BLUE",
    "COLOURS",
    "GREENS",
    "GREY",
    "NOTHING",
    "PALE_BLUE",
    "PURPLES",
    "ROSE",
    "TEAL",
    "VIOLET",
    "Panel",
    "Trace",
    "axes",
    "bars",
    "bins_of",
    "dashed",
    "event_name",
    "heat",
    "or_nothing",
    "page",
    "script_json",
    "stepped",
    "trace",
    "vertical",
]

Trace = dict[str, Any]

BLUE, TEAL, AMBER, ROSE, VIOLET, GREY = "#2563eb", "#0f9f8f", "#e08a00", "#d9365e", "#7c4ddb", "#9aa5b4"
PALE_BLUE = "#a9c4f5"
COLOURS = (
    BLUE,
    TEAL,
    AMBER,
    ROSE,
    VIOLET,
    GREY,
    "#3b3f8f",
    "#6b8e23",
    "#a0522d",
    "#c06c9e",
    "#2b7a78",
    "#b8860b",
    "#8b2f5f",
    "#5b7fa6",
)
PURPLES = ("#f6f4fd", "#d3c5f5", "#9a78e6", "#3f1d8f")
GREENS = ("#f1faf8", "#b5e3dc", "#3fb3a4", "#0a5f55")
BINS = 60
"""Stretches of a sequence that one plot shows, at most."""
NOTHING = "nothing of this is in the logs"


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: `data` and `layout` are what Plotly.newPlot takes."""

    title: str
    note: str
    data: Sequence[Trace]
    layout: Mapping[str, Any]


def bins_of(values: Sequence[Any]) -> list[tuple[int, Counter[Any]]]:
    """Counts of at most BINS equal stretches of a sequence, each with the place where it starts."""
    width = max(1, -(-len(values) // BINS))
    return [(start, Counter(values[start : start + width])) for start in range(0, len(values), width)]


def trace(x: Iterable[Any], y: Iterable[Any], name: str, colour: str, width: float) -> Trace:
    """A line; with points where a value stands between gaps, which no line reaches."""
    places, values = list(x), list(y)
    line = {"color": colour, "width": width}
    drawn: Trace = {"type": "scatter", "mode": "lines", "x": places, "y": values, "name": name, "line": line}
    if len(places) == 1:
        return {**drawn, "mode": "markers"}
    around = zip([None, *values], values, [*values[1:], None], strict=False)
    if any(before is None and here is not None and after is None for before, here, after in around):
        return {**drawn, "mode": "lines+markers", "marker": {"size": 4}}
    return drawn


def stepped(line: Trace) -> Trace:
    """The same line with corners: for values that hold until the next one."""
    return {**line, "line": {**line["line"], "shape": "hv"}}


def dashed(line: Trace) -> Trace:
    """The same line dashed: a bound."""
    return {**line, "line": {**line["line"], "dash": "dash"}}


def bars(x: Sequence[Any], y: Sequence[float], name: str, colour: str) -> Trace:
    """One colour of bars."""
    return {"type": "bar", "x": x, "y": y, "name": name, "marker": {"color": colour}}


def heat(x: Sequence[Any], y: Sequence[Any], shares: Sequence[Sequence[float]], colours: Sequence[str]) -> Trace:
    """Shares (one row for each y) from pale to dark; small ones are told apart better than large ones."""
    scale = [list(stop) for stop in zip((0, 0.15, 0.5, 1), colours, strict=True)]
    bar = {"tickformat": ".0%", "thickness": 10, "outlinewidth": 0}
    drawn = {"type": "heatmap", "x": x, "y": y, "z": shares, "zmin": 0, "zmax": 1, "xgap": 0.5}
    return {**drawn, "colorscale": scale, "colorbar": bar}


def axes(x: str, y: str, **yaxis: Any) -> dict[str, Any]:
    """A layout with named axes; further options of the y axis as keywords."""
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}, **yaxis}}


def vertical(x: float) -> dict[str, Any]:
    """A dotted line over the whole height: an event."""
    line = {"color": ROSE, "width": 1.2, "dash": "dot"}
    return {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x, "line": line}


def event_name(text: str, x: float) -> dict[str, Any]:
    """The name of a vertical line, at its foot."""
    font = {"size": 11, "color": ROSE}
    return {"text": text, "font": font, "showarrow": False, "x": x, "xanchor": "left", "yref": "paper", "y": 0.02}


def or_nothing(panel: Panel) -> Panel:
    """The panel; one without a value says so, instead of axes that stand for nothing."""
    values = (value for drawn in panel.data for row in drawn.get("z", [drawn["y"]]) for value in row)
    if any(value is not None for value in values):
        return panel
    note = {"text": NOTHING, "font": {"size": 13, "color": GREY}, "showarrow": False, "xref": "paper", "yref": "paper",
            "x": 0.5, "y": 0.5}  # fmt: skip
    hidden = {name: {**panel.layout[name], "visible": False} for name in ("xaxis", "yaxis")}
    return replace(panel, layout={**panel.layout, **hidden, "annotations": [note], "showlegend": False})


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element: a closing tag in a string would end the element."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode().replace("</", "<\\/")


def page(title: str, style: str, body: str, figures: Sequence[Mapping[str, Any]]) -> str:
    """HTML that needs no network; figure n is drawn into the element of the body whose id is `p<n>`."""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<style>body{{font:15px system-ui,sans-serif}}{style}</style>{body}<script>{get_plotlyjs()}</script>"
        f"<script>{script_json(figures)}.forEach((f, n) => "
        "Plotly.newPlot('p' + n, f.data, f.layout, {responsive: true, displayModeBar: false}))</script></html>"
    )
