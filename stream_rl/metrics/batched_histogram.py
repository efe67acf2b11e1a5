"""A histogram of prometheus-client that counts observations in batches.

A turn observes seven values, and to count one costs 2 us: a list takes it in a tenth of that, and numpy counts the list
when somebody looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any

import numpy as np
from prometheus_client import Histogram

__all__ = ["BatchedHistogram"]

MOST = 1024
"""Observations that wait, at most."""


class BatchedHistogram(Histogram):
    """As Histogram, without exemplars."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._waiting: list[float] = []
        self._counting = Lock()

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Adds one observation."""
        self.observe_all((amount,))

    def observe_all(self, amounts: Iterable[float]) -> None:
        """Adds observations."""
        self._waiting.extend(amounts)
        if len(self._waiting) >= MOST:
            self._count()

    def _child_samples(self) -> Any:
        self._count()
        return super()._child_samples()

    def _count(self) -> None:
        with self._counting:  # the event loop adds at the end meanwhile
            values = self._waiting[:]
            del self._waiting[: len(values)]
            if not values:
                return
            self._sum.inc(sum(values))
            places = np.searchsorted(self._upper_bounds, values)
            for place, count in zip(*np.unique(places, return_counts=True), strict=True):
                if place < len(self._buckets):  # a NaN is in none
                    self._buckets[place].inc(int(count))
