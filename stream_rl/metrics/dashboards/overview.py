"""Overview: the page to keep open, with those panels of the other dashboards that first say that something is wrong."""

from __future__ import annotations

from stream_rl.metrics import catalog
from stream_rl.metrics.dashboards.buffer import ACCOUNTING, RECOVERIES, TURNS_COMMITTED
from stream_rl.metrics.dashboards.engines import IDLE, TOKENS
from stream_rl.metrics.dashboards.panel import Dashboard, GrafanaPanel, Query
from stream_rl.metrics.dashboards.promql import latest
from stream_rl.metrics.dashboards.staleness import GROUP_LAG
from stream_rl.metrics.dashboards.trainer import REWARD, STEP_SECONDS, STEPS_PER_HOUR
from stream_rl.metrics.dashboards.truncation import ENDS, RESPONSE_LENGTH
from stream_rl.metrics.dashboards.turns import TURNS_PER_SAMPLE

__all__ = ["OVERVIEW"]


def _figure(title: str, look: str, expr: str, unit: str = "short") -> GrafanaPanel:
    return GrafanaPanel(title, look, [Query(expr)], unit, "figure", width=4)


OVERVIEW = Dashboard(
    "overview",
    "Overview",
    "One run at a glance. The first row must look calm; then read down until something does not.",
    [
        _figure("Step", "Newest published version. Not moving: see Steps per hour.", latest(catalog.TRAINER_VERSION)),
        _figure("Reward of the last step", "Over trajectories. Falling: see Reward.", latest(catalog.REWARD_MEAN)),
        _figure("Groups trained", "In all. Not moving: see Steps per hour.", latest(catalog.GROUPS, state="trained")),
        _figure("Dead letters", "Groups given up. Growing: see Groups left out.",
                latest(catalog.GROUPS, state="dead_lettered")),
        _figure("Processes brought back", "In all. Growing fast: see Recoveries.",
                f'sum ({catalog.RECOVERIES.full_name}{{run=~"$run"}})'),
        _figure("Groups unaccounted for", "Must be 0: see Accounting.", latest(catalog.ACCOUNTING)),
        REWARD, TOKENS, TURNS_PER_SAMPLE, ENDS, RESPONSE_LENGTH, GROUP_LAG, STEP_SECONDS, STEPS_PER_HOUR, IDLE,
        TURNS_COMMITTED, RECOVERIES, ACCOUNTING,
    ],
)  # fmt: skip
