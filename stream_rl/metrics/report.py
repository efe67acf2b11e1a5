"""report.html: one file with everything a run showed, which opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from stream_rl.metrics.dashboards import DASHBOARDS
from stream_rl.metrics.figure import COLOURS, Panel, script_json
from stream_rl.metrics.plots import panels
from stream_rl.metrics.run_folder import LoggedTurn, Record, RunRecords, versions_of
from stream_rl.sample import SampleId, WeightVersion

__all__ = ["render", "tiles", "trajectories", "write_report"]

SHOWN_TRAJECTORIES = 8
SECTIONS = sorted(DASHBOARDS[1:], key=lambda shown: shown.name != "trainer")
"""The dashboards in the order of the report: what is learned comes first. The overview repeats what others have."""
ALONE = "From the logs alone"


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure in the report's head; `alarm` marks a value that must not be."""

    name: str
    value: str
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A trajectory as the report's table shows it; `turns` holds (turn, generated tokens, [(version, colour)])."""

    sample: str
    step: int | None
    versions: int
    turns: Sequence[tuple[int, int, Sequence[tuple[str, str]]]]


def write_report(run_folder: str | Path) -> Path:
    """Writes report.html into the run folder and returns its path.

    Raises:
        ConfigError: the folder is not a run's.
        OSError: the folder cannot be written.
    """
    folder = Path(run_folder)
    path = folder / "report.html"
    path.write_text(render(RunRecords.load(folder)), encoding="utf-8")
    return path


def render(run: RunRecords) -> str:
    """The report as HTML, with the plotting library inside."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("stream_rl.metrics", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    drawn = panels(run)
    return environment.get_template("report.html.jinja").render(
        name=run.config.name,
        config=run.config,
        tiles=tiles(run.summary),
        sections=sections(drawn),
        figures=script_json([{"data": panel.data, "layout": panel.layout} for panel in drawn]),
        trajectories=trajectories(run),
        changes=[_readable(change) for change in run.changes],
        summary=run.summary,
        settings=run.config.dump(),
        plotly=get_plotlyjs(),
    )


def sections(drawn: Sequence[Panel]) -> list[tuple[str, list[tuple[int, Panel]]]]:
    """The panels with their places, under the title of the dashboard that has them too; the rest at the end."""
    placed = list(enumerate(drawn))
    named = [
        (title, [(place, panel) for place, panel in placed if panel.title in titles])
        for title, titles in ((shown.title, {panel.title for panel in shown.panels}) for shown in SECTIONS)
    ]
    known = {place for _, panels_of in named for place, _ in panels_of}
    rest = [(place, panel) for place, panel in placed if place not in known]
    return [(title, panels_of) for title, panels_of in [*named, (ALONE, rest)] if panels_of]


def tiles(summary: Record) -> list[Tile]:
    """The figures of the report's head; none before the run has a summary."""
    if not summary:
        return []
    recoveries = " · ".join(f"{kind} {times}" for kind, times in summary["recoveries"].items() if times)
    minutes, seconds = divmod(round(summary["wall_seconds"]), 60)
    lost = summary["lost_turns"]
    return [
        Tile("best 5-step reward", _number(summary["reward_best5"])),
        Tile("last 5 steps", _number(summary["reward_last5"])),
        Tile("evaluation reward", _number(summary["eval_reward"])),
        Tile("steps", f"{summary['steps']:,}"),
        Tile("trained groups", f"{summary['trained_groups']:,}"),
        Tile("trained twice", f"{summary['trained_twice']:,}", alarm=summary["trained_twice"] > 0),
        Tile("committed turns", f"{summary['committed_turns']:,}"),
        Tile("lost turns", "–" if lost is None else f"{lost:,}", alarm=bool(lost)),
        Tile("generated tokens", f"{summary['generated_tokens']:,}"),
        Tile("most versions in a sample", f"{summary['max_versions_in_sample']}"),
        Tile("recoveries", recoveries or "none"),
        Tile("wall clock", f"{minutes} min {seconds} s"),
    ]


def trajectories(run: RunRecords) -> list[Trajectory]:
    """The trajectories that the most weight versions wrote, those of later steps first among equals."""
    step_of = run.step_of
    mixed = [
        (count, step_of.get(SampleId.parse(sample).group), sample, turns)
        for sample, turns in run.trajectories.items()
        if (count := len(versions_of(turns))) > 1
    ]
    mixed.sort(key=lambda row: (-row[0], -(row[1] or 0), row[2]))
    return [
        Trajectory(sample, step, count, _coloured(turns)) for count, step, sample, turns in mixed[:SHOWN_TRAJECTORIES]
    ]


def _coloured(turns: Sequence[LoggedTurn]) -> list[tuple[int, int, list[tuple[str, str]]]]:
    return [(turn, generated, [(name, _colour(name)) for name in names]) for turn, generated, names in turns]


def _colour(version: str) -> str:
    return COLOURS[sum(WeightVersion.parse(version)) % len(COLOURS)]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _readable(change: Record) -> dict[str, Any]:
    shown = {name: "no limit" if change[name] is None else f"{change[name]:g}" for name in ("old", "new")}
    moment = datetime.fromtimestamp(change["time"], UTC)
    return {**change, **shown, "time": f"{moment:%Y-%m-%d %H:%M:%S} UTC"}
