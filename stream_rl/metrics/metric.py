"""What a metric is: its definition, and the values that this process gives it.

A metric shows nothing before its first value, so that a process exposes only what it knows: a gauge of the trainer's is
not 0 in every producer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, disable_created_metrics

from stream_rl.metrics.batched_histogram import BatchedHistogram

__all__ = ["METRICS", "PREFIX", "Kind", "Metric"]

Kind = Literal["counter", "gauge", "histogram"]
PREFIX = "stream_rl_"
METRICS: list[Metric] = []

# The series say since when they are there.
disable_created_metrics()  # type: ignore[no-untyped-call]
_registering = Lock()


@dataclass(slots=True)
class Metric:
    """One metric of the catalog; `inc`, `set`, `observe`, `observe_all` and `advance` take its labels as keywords.

    name     without the prefix, as Prometheus asks: base units, `_total` for counters
    help     one line: what one unit of it is
    labels   names of bounded sets: environments, causes, engines; never ids of samples or groups
    buckets  upper bounds of a histogram
    unit     what it counts, in words
    panel    title of the panel that draws it
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    registry: CollectorRegistry = REGISTRY
    unit: str = ""
    panel: str = ""
    _collector: Counter | Gauge | BatchedHistogram = field(init=False, repr=False)
    _children: dict[tuple[str | None, ...], Counter | Gauge | BatchedHistogram] = field(
        default_factory=dict, init=False, repr=False
    )
    _shown: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind == "counter":
            self._collector = Counter(self.full_name, self.help, self.labels, registry=None)
        elif self.kind == "gauge":
            self._collector = Gauge(self.full_name, self.help, self.labels, registry=None)
        else:
            self._collector = BatchedHistogram(
                self.full_name, self.help, self.labels, registry=None, buckets=self.buckets
            )
        METRICS.append(self)

    @property
    def full_name(self) -> str:
        """The name in queries."""
        return PREFIX + self.name

    @property
    def series(self) -> frozenset[str]:
        """Names of the series that it is exposed as."""
        if self.kind == "histogram":
            parts = ("bucket", "count") if self.buckets[0] < 0 else ("bucket", "sum", "count")
            return frozenset(f"{self.full_name}_{part}" for part in parts)
        return frozenset((self.full_name,))

    def inc(self, amount: float = 1.0, **labels: str) -> None:
        """Adds to a counter (or gauge); 0 shows it."""
        child = self._child(labels)
        assert isinstance(child, Counter | Gauge)
        child.inc(amount)

    def set(self, value: float, **labels: str) -> None:
        """Sets a gauge."""
        child = self._child(labels)
        assert isinstance(child, Gauge)
        child.set(value)

    def observe(self, value: float, **labels: str) -> None:
        """Adds one observation to a histogram."""
        child = self._child(labels)
        assert isinstance(child, BatchedHistogram)
        child.observe(value)

    def observe_all(self, values: Iterable[float], **labels: str) -> None:
        """Adds observations to a histogram."""
        child = self._child(labels)
        assert isinstance(child, BatchedHistogram)
        child.observe_all(values)

    def advance(self, total: float, **labels: str) -> None:
        """Brings a counter up to a total that is counted elsewhere; it never falls."""
        child = self._child(labels)
        assert isinstance(child, Counter)
        child.inc(max(0.0, total - child._value.get()))

    def forget(self, keep: Iterable[tuple[str, ...]]) -> None:
        """Drops the series whose label values, in order, are not in `keep`."""
        for gone in self._children.keys() - set(keep):
            del self._children[gone]
            self._collector.remove(*gone)

    def _child(self, labels: dict[str, str]) -> Counter | Gauge | BatchedHistogram:
        # prometheus-client checks and sorts the labels at every call, which ten times a turn is a good part of it.
        key = tuple(map(labels.get, self.labels))
        if (child := self._children.get(key)) is None:
            child = self._children[key] = self._collector.labels(**labels) if self.labels else self._collector
            self._show()
        return child

    def _show(self) -> None:
        with _registering:
            if not self._shown:
                self.registry.register(self._collector)
                self._shown = True
