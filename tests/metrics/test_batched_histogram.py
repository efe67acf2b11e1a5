"""Counted in batches, it shows what a plain histogram shows."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from stream_rl.metrics.batched_histogram import MOST, BatchedHistogram

BOUNDS = (0.0, 0.5, 1.0, 3.0)
VALUES = st.one_of(st.sampled_from([*BOUNDS, 7.0]), st.floats(0, 10), st.just(float("nan")))


def shown(registry: CollectorRegistry) -> list[tuple[str, str, float]]:
    found = (sample for metric in registry.collect() for sample in metric.samples)
    return [(one.name, one.labels.get("le", ""), one.value) for one in found if not one.name.endswith("_created")]


@given(st.lists(st.lists(VALUES, max_size=20), max_size=4))
def test_it_shows_what_a_plain_one_shows(looks: list[list[float]]) -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    batched = BatchedHistogram("size", "help", registry=registries[0], buckets=BOUNDS)
    plain = Histogram("size", "help", registry=registries[1], buckets=BOUNDS)
    for values in looks:
        for value in values:
            batched.observe(value)
            plain.observe(value)
        for mine, theirs in zip(*map(shown, registries), strict=True):
            assert mine[:2] == theirs[:2]
            assert mine[2] == pytest.approx(theirs[2], nan_ok=True)


def test_what_waits_is_bounded_and_nothing_is_lost_while_somebody_looks() -> None:
    registry = CollectorRegistry()
    histogram = BatchedHistogram("size", "help", ["of"], registry=registry, buckets=BOUNDS).labels("a")
    count, done = 20 * MOST + 7, threading.Event()

    def look() -> None:
        while not done.is_set():
            list(registry.collect())

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(count):
        histogram.observe(0.7)
        assert len(histogram._waiting) < MOST
    done.set()
    looking.join(30)
    assert registry.get_sample_value("size_count", {"of": "a"}) == count
