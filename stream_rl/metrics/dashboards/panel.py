"""What a dashboard shows, as plain data: grafana.py draws it, and tests ask every query of a real Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Dashboard", "GrafanaPanel", "Query", "heatmap", "lines", "stacked"]

Form = Literal["lines", "stacked", "heatmap", "figure"]


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and the name of each series that it gives, with `{{label}}` for a label's value."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class GrafanaPanel:
    """One panel.

    look   what it shows, and what to do when it looks wrong
    unit   Grafana's name of the unit
    width  of 24 columns
    least  where the y axis begins; None: at what is drawn
    """

    title: str
    look: str
    queries: Sequence[Query]
    unit: str = "short"
    form: Form = "lines"
    width: int = 12
    least: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Panels in reading order; `name` is the file's, the address's and the title's."""

    name: str
    title: str
    about: str
    panels: Sequence[GrafanaPanel]


def lines(
    title: str, look: str, *queries: tuple[str, str], unit: str = "short", least: float | None = 0.0
) -> GrafanaPanel:
    """A panel of lines, from (PromQL, legend)."""
    return GrafanaPanel(title, look, [Query(*query) for query in queries], unit, least=least)


def stacked(title: str, look: str, *queries: tuple[str, str], unit: str = "short") -> GrafanaPanel:
    """A panel of areas that add up, from (PromQL, legend)."""
    return GrafanaPanel(title, look, [Query(*query) for query in queries], unit, "stacked")


def heatmap(title: str, look: str, buckets: str, unit: str = "short") -> GrafanaPanel:
    """A histogram over time, from the PromQL of its buckets."""
    return GrafanaPanel(title, look, [Query(buckets, "{{le}}")], unit, "heatmap")
