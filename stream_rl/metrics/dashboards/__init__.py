"""Dashboards as code: what each shows, in PromQL over the catalog.

overview · turns · truncation · staleness · trainer · engines · buffer ─► grafana.py ─► deploy/grafana/dashboards/
"""

from __future__ import annotations

from stream_rl.metrics.dashboards.buffer import BUFFER
from stream_rl.metrics.dashboards.engines import ENGINES
from stream_rl.metrics.dashboards.overview import OVERVIEW
from stream_rl.metrics.dashboards.panel import Dashboard
from stream_rl.metrics.dashboards.staleness import STALENESS
from stream_rl.metrics.dashboards.trainer import TRAINER
from stream_rl.metrics.dashboards.truncation import TRUNCATION
from stream_rl.metrics.dashboards.turns import TURNS

__all__ = ["DASHBOARDS"]

DASHBOARDS: tuple[Dashboard, ...] = (OVERVIEW, TURNS, TRUNCATION, STALENESS, TRAINER, ENGINES, BUFFER)
