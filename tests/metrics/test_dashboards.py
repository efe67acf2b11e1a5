"""Dashboards draw the whole catalog and nothing else, say what to do, and are the files in deploy/."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from stream_rl.metrics.catalog import METRICS, Metric
from stream_rl.metrics.dashboards import DASHBOARDS
from stream_rl.metrics.dashboards.grafana import ANNOTATIONS, VARIABLES, files
from stream_rl.metrics.dashboards.panel import Dashboard, GrafanaPanel

DRAWN = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
PANELS = [panel for dashboard in DASHBOARDS for panel in dashboard.panels]
dashboards = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
panels = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
SERIES = frozenset().union(*(metric.series for metric in METRICS))


def named(text: str) -> set[str]:
    """The series of ours that a query names."""
    return set(re.findall(r"stream_rl_[a-z0-9_]+", text))


def test_the_files_are_what_the_code_draws() -> None:
    assert {path.name: path.read_text() for path in DRAWN.glob("*.json")} == files()


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_each_metric_is_drawn_by_the_panel_that_the_catalog_names(metric: Metric) -> None:
    drawn = [query.expr for panel in PANELS if panel.title == metric.panel for query in panel.queries]
    assert metric.series & named(" ".join(drawn))


def test_every_query_names_series_of_the_catalog() -> None:
    queries = [query.expr for panel in PANELS for query in panel.queries]
    queries += [*VARIABLES.values(), *(expr for expr, _ in ANNOTATIONS.values())]
    assert named(" ".join(queries)) <= SERIES


@panels
def test_a_label_of_a_legend_is_kept_by_its_query(panel: GrafanaPanel) -> None:
    for query in panel.queries:
        kept = {label.strip() for by in re.findall(r"by \(([^)]*)\)", query.expr) for label in by.split(",")}
        assert set(re.findall(r"{{(\w+)}}", query.legend)) <= kept


@panels
def test_a_panel_says_what_to_do_when_it_looks_wrong(panel: GrafanaPanel) -> None:
    assert re.search(r"[:;]", panel.look)
    assert panel.look.endswith(".")


def test_what_a_title_says_is_asked_for() -> None:
    asked = {panel.title: " ".join(query.expr for query in panel.queries) for panel in PANELS}
    assert "process_cpu_seconds_total" in asked["CPU of processes"]
    assert "process_resident_memory_bytes" in asked["Memory of processes"]


@dashboards
def test_titles_are_told_apart(dashboard: Dashboard) -> None:
    titles = [panel.title for panel in dashboard.panels]
    assert len(titles) == len(set(titles))


@dashboards
def test_a_dashboard_has_its_variables_and_annotations(dashboard: Dashboard) -> None:
    drawn = json.loads(files()[f"{dashboard.name}.json"])
    assert [variable["name"] for variable in drawn["templating"]["list"]] == ["run", "environment", "window"]
    assert [annotation["name"] for annotation in drawn["annotations"]["list"]] == ["Weight versions", "Live changes"]
    assert {panel["title"] for panel in drawn["panels"]} == {panel.title for panel in dashboard.panels}
    assert all(panel["description"] for panel in drawn["panels"])
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in drawn["panels"]]
    assert len(places) == len(set(places))
