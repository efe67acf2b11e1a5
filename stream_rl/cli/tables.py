"""What `status` and the end of `train` show: pure functions from a run's state to rich tables; and how to print one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from stream_rl.config import Config

if TYPE_CHECKING:
    from stream_rl.buffer import RunSnapshot, SettingChange

__all__ = [
    "changes_table",
    "counts_table",
    "lag_line",
    "live_view",
    "print_whole",
    "rewards_line",
    "setting_text",
    "still_view",
    "summary_table",
]

SPARKS = "▁▂▃▄▅▆▇█"
SHOWN_STEPS = 60
MOST_COLUMNS = 1000
SHOWN_CHANGES = 5
PROSE = ("groups", "samples", "turns", "recoveries")
"""Tables whose rows are words; those of the others are names of settings."""
KNOBS = ("run_ahead", "max_staleness", "max_lag", "concurrency")


def live_view(
    config: Config,
    snapshot: RunSnapshot,
    steps: Sequence[Mapping[str, Any]],
    metrics_url: str | None,
    changes: Sequence[SettingChange] = (),
) -> RenderableType:
    """A run whose buffer answers; `metrics_url` is the supervisor's, None when the supervisor is gone."""
    rules = snapshot.rules
    groups = {name: getattr(snapshot, name) for name in ("admitted", "trained", "filtered", "dead_lettered", "live")}
    samples = {name: getattr(snapshot, name) for name in ("pending", "leased", "resumable")}
    turns = {"committed": snapshot.committed_turns, "refused commits": snapshot.refused_commits}
    return Group(
        _headline(config, snapshot, supervised=metrics_url is not None),
        rewards_line(steps),
        lag_line(steps),
        Columns(
            [
                counts_table("groups", {**groups, "of them complete": snapshot.complete}),
                counts_table("samples", {**samples, "resumed": snapshot.resumes, "refilled": snapshot.refills}),
                counts_table("turns", turns),
                counts_table("recoveries", dict(snapshot.recoveries)),
                counts_table("knobs", {k: getattr(rules, k) for k in KNOBS}),
            ]
        ),
        _processes(snapshot, metrics_url),
        *([changes_table(changes[-SHOWN_CHANGES:])] if changes else []),
    )


def still_view(
    config: Config, summary: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], supervised: bool
) -> RenderableType:
    """A run whose buffer does not answer: the last summary, if it wrote one."""
    state = "its buffer does not answer: starting, or Redis is being restarted" if supervised else "not running"
    head = Text.assemble((config.name, "bold"), f"  {state}")
    shown = summary_table(summary) if summary else Text("no summary yet", style="dim")
    return Group(head, rewards_line(steps), shown)


def rewards_line(steps: Sequence[Mapping[str, Any]]) -> Text:
    """The last steps' rewards as a line of bars, on the scale of those shown."""
    rewards = [float(step["reward_mean"]) for step in steps[-SHOWN_STEPS:]]
    if not rewards:
        return Text("no step yet", style="dim")
    low, high = min(rewards), max(rewards)
    places = [round((reward - low) / (high - low or 1.0) * (len(SPARKS) - 1)) for reward in rewards]
    bars = "".join(SPARKS[place] for place in places)
    return Text.assemble("reward ", (bars, "blue"), f"  last {rewards[-1]:.3f}, from {low:.3f} to {high:.3f}")


def lag_line(steps: Sequence[Mapping[str, Any]]) -> Text:
    """Where the newest steps' lag comes from, and the knobs that this asks for."""
    from stream_rl.tuning.sizing import sizing  # noqa: PLC0415 - slow to import, and --help needs none of it

    found = sizing(steps)
    if found is None:
        return Text("")
    lag = found.generating + found.siblings + found.ready
    return Text(
        f"lag {lag:.1f} versions: {found.generating:.1f} generating, {found.siblings:.1f} waiting for siblings, "
        f"{found.ready:.1f} ready; the trainer waits {found.trainer_waits:.0%}; asked for by this: "
        f"run_ahead {found.run_ahead}, max_lag {found.max_lag}"
    )


def counts_table(title: str, counts: Mapping[str, Any]) -> Table:
    """Names and numbers under a title."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=box.SIMPLE)
    table.add_column()
    table.add_column(justify="right")
    for name, count in counts.items():
        table.add_row(name.replace("_", " ") if title in PROSE else name, setting_text(count))
    return table


def changes_table(changes: Sequence[SettingChange]) -> Table:
    """Settings that were changed since the run was first opened, the newest last."""
    table = Table(title="changed settings", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in ("time", "after step", "setting", "old", "new", "by"):
        table.add_column(column)
    for change in changes:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change.time))
        old, new = setting_text(change.old), setting_text(change.new)
        table.add_row(when, str(change.step), change.setting, old, new, change.by)
    return table


def print_whole(console: Console, table: Table) -> None:
    """Prints a table of figures as wide as it is: a narrow terminal breaks its lines; rich would cut the figures."""
    width = console.width
    needed = Measurement.get(console, console.options.update(max_width=MOST_COLUMNS), table).maximum
    console.width = max(width, needed)
    console.print(table)
    console.width = width


def setting_text(value: Any) -> str:
    """A setting's value, or a count; None is no limit."""
    if value is None:
        return "no limit"
    return f"{value:g}" if isinstance(value, float) else str(value)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The figures of summary.json."""
    table = Table(title="summary", title_justify="left", title_style="bold", show_header=False, box=box.SIMPLE)
    table.add_column()
    table.add_column(justify="right")
    for name, value in summary.items():
        table.add_row(name, _text(value))
    return table


def _headline(config: Config, snapshot: RunSnapshot, supervised: bool) -> Text:
    total = snapshot.rules.total_groups // snapshot.rules.groups_per_step
    state = str(snapshot.state) if supervised else f"{snapshot.state}, but its supervisor is gone: train with --resume"
    return Text.assemble((config.name, "bold"), f"  {state}  step {snapshot.ledger_steps} of {total}")


def _processes(snapshot: RunSnapshot, metrics_url: str | None) -> Table:
    table = Table(title="processes", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in ("name", "host", "pid", "state", "weights", "metrics"):
        table.add_column(column)
    if metrics_url is not None and all(process.kind != "supervisor" for process in snapshot.processes):
        table.add_row("supervisor", "", "", "", "", metrics_url)
    for process in snapshot.processes:
        table.add_row(process.name, process.host, str(process.pid), "", "", process.metrics_url)
    for engine in snapshot.engines:
        version = "–" if engine.version is None else str(engine.version)
        table.add_row(engine.engine_id, engine.url, str(engine.pid or "–"), engine.state, version, "")
    return table


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {count}" for name, count in value.items())
    if isinstance(value, float):
        return f"{value:.3f}"
    return "–" if value is None else f"{value:,}"
