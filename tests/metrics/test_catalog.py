"""The catalog keeps Prometheus's rules, and each metric does what its kind does."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry

from stream_rl.metrics import catalog
from stream_rl.metrics.catalog import METRICS, Metric

UNITS = {"seconds", "bytes", "tokens", "versions", "nats"}
UNBOUNDED = {"sample", "group", "turn", "lease", "step", "prompt", "pid", "url"}
names = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_every_name_is_used_once() -> None:
    used = [metric.name for metric in METRICS]
    assert len(used) == len(set(used))


def test_every_constant_is_in_the_list() -> None:
    assert {id(value) for value in vars(catalog).values() if isinstance(value, Metric)} <= {id(m) for m in METRICS}


@names
def test_names_follow_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not metric.name.startswith(catalog.PREFIX)
    assert not re.search(r"_(count|sum|bucket|ms|milliseconds|minutes|kb|mb)$", metric.name)


@names
def test_labels_are_bounded(metric: Metric) -> None:
    assert not UNBOUNDED & set(metric.labels)
    assert all(re.fullmatch(r"[a-z_]+", label) for label in metric.labels)


@names
def test_buckets_rise_and_belong_to_histograms(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))


@names
def test_units_stand_in_names(metric: Metric) -> None:
    words = metric.name.removesuffix("_total").split("_")
    if words[-1] in UNITS or (metric.unit in ("seconds", "bytes") and metric.kind != "gauge"):
        assert words[-1] == metric.unit


@names
def test_each_has_a_panel(metric: Metric) -> None:
    assert metric.panel


@names
def test_help_is_one_line(metric: Metric) -> None:
    assert metric.help[0].isupper()
    assert "\n" not in metric.help


def test_a_counter_adds(registry: CollectorRegistry) -> None:
    metric = made("seen_total", "counter", registry, labels=("kind",))
    metric.inc(kind="a")
    metric.inc(2.5, kind="a")
    assert registry.get_sample_value("stream_rl_seen_total", {"kind": "a"}) == 3.5


def test_a_gauge_is_set(registry: CollectorRegistry) -> None:
    metric = made("level", "gauge", registry)
    metric.set(3)
    metric.set(2)
    assert registry.get_sample_value("stream_rl_level") == 2


def test_a_histogram_counts_into_its_buckets(registry: CollectorRegistry) -> None:
    metric = made("size", "histogram", registry, buckets=(1.0, 2.0))
    for value in (0.5, 1.5, 9):
        metric.observe(value)
    assert registry.get_sample_value("stream_rl_size_bucket", {"le": "2.0"}) == 2
    assert registry.get_sample_value("stream_rl_size_count") == 3


def test_a_metric_shows_nothing_before_its_first_value(registry: CollectorRegistry) -> None:
    metric = made("level", "gauge", registry)
    assert list(registry.collect()) == []
    metric.set(0)
    assert registry.get_sample_value("stream_rl_level") == 0


def test_a_counter_follows_a_total_and_never_falls(registry: CollectorRegistry) -> None:
    metric = made("seen_total", "counter", registry)
    for total in (5, 3, 7):
        metric.advance(total)
    assert registry.get_sample_value("stream_rl_seen_total") == 7


def test_series_that_are_gone_are_dropped(registry: CollectorRegistry) -> None:
    metric = made("level", "gauge", registry, labels=("engine",))
    for engine in ("a", "b"):
        metric.set(1, engine=engine)
    metric.forget([("b",)])
    assert registry.get_sample_value("stream_rl_level", {"engine": "a"}) is None
    metric.set(2, engine="a")
    assert registry.get_sample_value("stream_rl_level", {"engine": "a"}) == 2


def test_a_metric_knows_the_names_that_it_is_exposed_by(registry: CollectorRegistry) -> None:
    metrics = [
        made("seen_total", "counter", registry), made("level", "gauge", registry),
        made("size", "histogram", registry, buckets=(1.0,)),
    ]  # fmt: skip
    for metric, use in zip(metrics, ("inc", "set", "observe"), strict=True):
        getattr(metric, use)(1)
    exposed = {sample.name for family in registry.collect() for sample in family.samples}
    assert exposed == set().union(*(metric.series for metric in metrics))


def made(
    name: str,
    kind: catalog.Kind,
    registry: CollectorRegistry,
    labels: tuple[str, ...] = (),
    buckets: tuple[float, ...] = (),
) -> Metric:
    metric = Metric(name, kind, "For a test", labels, buckets, registry)
    METRICS.remove(metric)
    return metric
