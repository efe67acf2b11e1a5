"""Dashboards as Grafana's JSON, by its foundation SDK (an extra: only whoever changes a dashboard needs it)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from stream_rl.metrics.catalog import SETTING, TRAINER_VERSION, TURNS_COMMITTED
from stream_rl.metrics.dashboards import DASHBOARDS
from stream_rl.metrics.dashboards.panel import Dashboard, GrafanaPanel, Query

__all__ = ["ANNOTATIONS", "VARIABLES", "files"]

Drawn = TypeVar("Drawn", timeseries.Panel, heatmap.Panel, stat.Panel)

SOURCE = models.DataSourceRef(type_val="prometheus", uid="stream_rl")
VARIABLES: Mapping[str, str] = {
    "run": f"label_values({SETTING.full_name}, run)",
    "environment": f'label_values({TURNS_COMMITTED.full_name}{{run=~"$run"}}, environment)',
}
WINDOWS = "1m,5m,15m,1h,6h"
ANNOTATIONS: Mapping[str, tuple[str, str]] = {
    "Weight versions": (f'changes({TRAINER_VERSION.full_name}{{run=~"$run"}}[$__interval]) > 0', "blue"),
    "Live changes": (f'changes({SETTING.full_name}{{run=~"$run"}}[$__interval]) > 0', "orange"),
}


def files() -> dict[str, str]:
    """Every dashboard's JSON, by its file's name."""
    return {f"{shown.name}.json": _json(shown) for shown in DASHBOARDS}


def _json(shown: Dashboard) -> str:
    built = (
        dashboard.Dashboard(f"stream_rl: {shown.title}")
        .uid(f"stream-rl-{shown.name}")
        .description(shown.about)
        .tags(["stream_rl"])
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("stream_rl")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["stream_rl"])
            .keep_time(True)
            .include_vars(True)
        )
        .variables([*(_variable(*named) for named in VARIABLES.items()), _window()])
        .annotations([_annotation(name, *drawn) for name, drawn in ANNOTATIONS.items()])
    )
    for number, panel in enumerate(shown.panels, 1):
        built.with_panel(_FORMS[panel.form](panel).id(number))
    return json.dumps(built.build(), cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _variable(name: str, query: str) -> dashboard.QueryVariable:
    chosen = dashboard.QueryVariable(name).datasource(SOURCE).query(query)
    chosen.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(models.VariableSort.ALPHABETICAL_DESC)
    return chosen if name == "run" else chosen.include_all(True).all_value(".*")


def _window() -> dashboard.IntervalVariable:
    return (
        dashboard.IntervalVariable("window")
        .label("window of rates")
        .values(WINDOWS)
        .current(models.VariableOption(selected=True, text="5m", value="5m"))
    )


def _annotation(name: str, expr: str, colour: str) -> dashboard.AnnotationQuery:
    return dashboard.AnnotationQuery().name(name).datasource(SOURCE).expr(expr).icon_color(colour).enable(True)


def _query(place: int, query: Query, form: PromQueryFormat) -> prometheus.Dataquery:
    asked = prometheus.Dataquery().expr(query.expr).ref_id(chr(ord("A") + place)).format(form).range()
    return asked.legend_format(query.legend) if query.legend else asked


def _lines(panel: GrafanaPanel, stacked: bool = False) -> timeseries.Panel:
    legend = common.VizLegendOptions().show_legend(True).placement(common_models.LegendPlacement.BOTTOM)
    drawn = timeseries.Panel().legend(legend.display_mode(common_models.LegendDisplayMode.LIST))
    drawn.fill_opacity(60 if stacked else 0).line_width(1).span_nulls(True)
    if stacked:
        drawn.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    if panel.least is not None:
        drawn.min(panel.least)
    return _framed(drawn, panel, PromQueryFormat.TIME_SERIES)


def _stacked(panel: GrafanaPanel) -> timeseries.Panel:
    return _lines(panel, stacked=True)


def _heatmap(panel: GrafanaPanel) -> heatmap.Panel:
    drawn = heatmap.Panel().calculate(False).y_axis(heatmap.YAxisConfig().unit(panel.unit))
    return _framed(drawn, panel, PromQueryFormat.HEATMAP)


def _figure(panel: GrafanaPanel) -> stat.Panel:
    return _framed(stat.Panel(), panel, PromQueryFormat.TIME_SERIES).height(4)


def _framed(drawn: Drawn, panel: GrafanaPanel, form: PromQueryFormat) -> Drawn:
    drawn.title(panel.title).description(panel.look).unit(panel.unit).datasource(SOURCE).span(panel.width).height(8)
    queries: list[Any] = [_query(place, query, form) for place, query in enumerate(panel.queries)]
    return drawn.targets(queries)


_FORMS: Mapping[str, Callable[[GrafanaPanel], timeseries.Panel | heatmap.Panel | stat.Panel]] = {
    "lines": _lines, "stacked": _stacked, "heatmap": _heatmap, "figure": _figure,
}  # fmt: skip
