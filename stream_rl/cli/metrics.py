"""`stream-rl metrics`: the reference of every metric, from the catalog; docs/metrics.md is its output."""

from __future__ import annotations

import typer

__all__ = ["EXAMPLES", "metrics", "metrics_reference"]

EXAMPLES = """Example:

  stream-rl metrics | grep turn
"""
INTRODUCTION = """# Metrics

`stream-rl metrics` prints this page. Supervisor, producers, trainer ranks and engines each serve their part on
`/metrics`; `stream-rl status RUN` shows the addresses, `stream-rl metrics-sd` tells them to Prometheus. The
evaluation's process and those of environments serve none: what an evaluation gave stands in `evaluations.jsonl`, what
environments took the producers count. What a turn adds is counted when its commit is accepted: a zombie, a retry or a
resume never counts it twice. What the buffer and the run's logs record, the supervisor counts from there, so that no
death loses any of it. Of dashboards, alerts, traces and logs: [observability.md](observability.md).

| metric | kind | unit | labels | meaning | panel |
|---|---|---|---|---|---|
"""


def metrics() -> None:
    """Print every metric: its name, kind, unit, labels, meaning, and the panel that draws it."""
    typer.echo(metrics_reference(), nl=False)


def metrics_reference() -> str:
    """The reference as Markdown, in the catalog's order."""
    from stream_rl.metrics.catalog import METRICS  # noqa: PLC0415 - prometheus-client is slow to import

    rows = []
    for metric in METRICS:
        labels, meaning = ", ".join(metric.labels) or "–", metric.help.replace("|", "\\|")
        cells = (f"`{metric.full_name}`", metric.kind, metric.unit or "–", labels, meaning, metric.panel)
        rows.append(f"| {' | '.join(cells)} |\n")
    return INTRODUCTION + "".join(rows)
