"""PromQL over the catalog's metrics: a query can only name what is there.

`$run`, `$environment` and `$window` are variables of every dashboard. Rates are safe against restarts: a process comes
back under its name, as the same series, and Prometheus sees its counters begin anew.
"""

from __future__ import annotations

from stream_rl.metrics.catalog import Metric

__all__ = [
    "growth", "heat", "latest", "mean", "of_sglang", "quantile", "rate", "selected", "share", "share_of_all",
    "together",
]  # fmt: skip


def selected(metric: Metric, suffix: str = "", **labels: str) -> str:
    """The metric's series in the chosen run and environment; labels are matched by regular expressions."""
    chosen = {"run": "$run"}
    if "environment" in metric.labels:
        chosen["environment"] = "$environment"
    matchers = ", ".join(f'{name}=~"{value}"' for name, value in {**chosen, **labels}.items())
    return f"{metric.full_name}{suffix}{{{matchers}}}"


def of_sglang(name: str) -> str:
    """A metric of SGLang's own: `sglang:NAME`, and `sglang_NAME` where Prometheus asks for OpenMetrics, as it does."""
    return f'{{__name__=~"sglang[:_]{name}", run=~"$run", kind="engine"}}'


def rate(metric: Metric, *by: str, suffix: str = "", **labels: str) -> str:
    """How much it grows in a second."""
    return f"sum{_by(by)} (rate({selected(metric, suffix, **labels)}[$window]))"


def growth(metric: Metric, *by: str, **labels: str) -> str:
    """How much it grew in the window."""
    return f"sum{_by(by)} (increase({selected(metric, **labels)}[$window]))"


def latest(metric: Metric, *by: str, **labels: str) -> str:
    """A gauge of one process, or its largest value."""
    return f"max{_by(by)} ({selected(metric, **labels)})"


def together(metric: Metric, *by: str, **labels: str) -> str:
    """A gauge of many processes, added up."""
    return f"sum{_by(by)} ({selected(metric, **labels)})"


def mean(metric: Metric, *by: str) -> str:
    """A histogram's mean in the window."""
    return f"{rate(metric, *by, suffix='_sum')} / {rate(metric, *by, suffix='_count')}"


def quantile(rank: float, metric: Metric, *by: str) -> str:
    """A histogram's quantile in the window."""
    return f"histogram_quantile({rank:g}, {rate(metric, 'le', *by, suffix='_bucket')})"


def heat(metric: Metric) -> str:
    """A histogram's buckets over time."""
    return f"sum by (le) (increase({selected(metric, '_bucket')}[$window]))"


def share(part: str, whole: str) -> str:
    """One rate of another with the same labels; nothing where nothing happened."""
    return f"{part} / ({whole} > 0)"


def share_of_all(parts: str, whole: str) -> str:
    """Each of several rates, of one that has no label left."""
    return f"{parts} / on () group_left () ({whole} > 0)"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""
