"""What the newest steps ask for, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from stream_rl.tuning.sizing import NEWEST, sizing


def step(generating: float, siblings: float, ready: float, lag: int, wait: float = 1.0) -> dict[str, Any]:
    parts = dict.fromkeys(("load", "train", "publish", "checkpoint"), 0.75)
    return {
        "lag_parts": {"generating": generating, "siblings": siblings, "ready": ready}, "group_lag_max": lag,
        "wait_seconds": wait, **{f"{part}_seconds": seconds for part, seconds in parts.items()},
    }  # fmt: skip


def test_parts_knobs_and_waiting() -> None:
    found = sizing([step(1.0, 0.5, 2.0, 4), step(2.0, 0.75, 0.0, 7)])
    assert found is not None
    assert (found.generating, found.siblings, found.ready) == (1.5, 0.625, 1.0)
    assert found.trainer_waits == pytest.approx(0.25)
    assert (found.run_ahead, found.max_lag) == (3, 7)


def test_old_steps_do_not_count() -> None:
    found = sizing([step(9.0, 9.0, 9.0, 99), *[step(0.0, 0.0, 0.0, 0)] * NEWEST])
    assert found is not None
    assert (found.generating, found.run_ahead, found.max_lag) == (0.0, 1, 0)
    assert sizing([]) is None
