"""What a run's own lags ask for: live diagnostics, from the newest lines of steps.jsonl.

A group that needs R seconds from its first token until it is complete, in a run with a step every T seconds, must start
R / T steps before it is trained; and R / T is nothing but the versions that pass meanwhile, which the steps have
logged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream_rl.metrics.run_folder import step_seconds

__all__ = ["NEWEST", "Sizing", "sizing"]

NEWEST = 20
"""Steps that are looked at."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """Means over the newest steps, lags in versions and the trainer's waiting as a share of its time.

    `run_ahead` is what groups need to be complete when their turn comes, `max_lag` what no group had to be waited for
    under; both as these steps ask for them, whatever is set.
    """

    generating: float
    siblings: float
    ready: float
    trainer_waits: float
    run_ahead: int
    max_lag: int


def sizing(steps: Sequence[Mapping[str, Any]]) -> Sizing | None:
    """Looks at the newest lines of steps.jsonl; None before there is one."""
    newest = steps[-NEWEST:]
    if not newest:
        return None
    generating, siblings, ready = (
        float(np.mean([step["lag_parts"][part] for step in newest])) for part in ("generating", "siblings", "ready")
    )
    waited = sum(step["wait_seconds"] for step in newest)
    spent = sum(map(step_seconds, newest))
    return Sizing(
        generating=generating,
        siblings=siblings,
        ready=ready,
        trainer_waits=waited / max(spent, 1e-9),
        run_ahead=max(math.ceil(generating + siblings), 1),
        max_lag=max(step["group_lag_max"] for step in newest),
    )
