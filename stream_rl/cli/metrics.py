"""`stream-rl metrics`: the reference of every metric, from the catalog; docs/metrics.md is its output."""

from __future__ import annotations

import typer

EXAMPLES = """Example:

  stream-rl metrics | grep turn
"""
INTRODUCTION = """# Metrics

`stream-rl metrics` prints this page. Every process of a run serves its part on `/metrics`; `stream-rl status RUN`
shows the addresses. A fact is counted where it is accepted, so a zombie, a retry or a resume never counts twice.

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def metrics() -> None:
    """Print every metric: its name, kind, labels and meaning."""
    typer.echo(metrics_reference(), nl=False)


def metrics_reference() -> str:
    """The reference as Markdown, in the catalog's order."""
    from stream_rl.metrics.catalog import METRICS, PREFIX  # noqa: PLC0415 - it registers every metric of the process

    rows = []
    for metric in METRICS:
        labels, meaning = ", ".join(metric.labels) or "–", metric.help.replace("|", "\\|")
        rows.append(f"| `{PREFIX}{metric.name}` | {metric.kind} | {labels} | {meaning} |\n")
    return INTRODUCTION + "".join(rows)
