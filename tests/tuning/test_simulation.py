"""The simulator: seconds by hand where there is nothing random, and the bound's promises where there is."""

from __future__ import annotations

import numpy as np
import pytest

from stream_rl.tuning import Episode, GivenWorkload, Machine, Plan, Workload, simulate

FIXED = Workload([[Episode(10, np.array([20, 10]), np.array([5, 0]), np.array([7.0, 3.0]))]])
MACHINE = Machine(
    slots=4, token_seconds=0.5, crowd_seconds=0.25, prefill_seconds=0.1, turn_seconds=0.5, update_seconds=2.0,
    step_seconds=1.0, train_seconds=0.01, pause_mode="in_place",
)  # fmt: skip
HEAVY = GivenWorkload(tokens_median=30, env_median=3.0, prompt=10, observation=2).workload(0, 4, 200)
BUSY = Machine(engines=2, slots=8, token_seconds=0.05, crowd_seconds=0.005, update_seconds=2.0, train_seconds=4e-3)


def test_one_step_by_hand() -> None:
    """Two groups of two, on-policy: all four samples run side by side, so a round takes 1.5 s."""
    plan = Plan(2, 2, run_ahead=0, max_staleness=0, max_lag=0, concurrency=4)
    one = simulate(plan, FIXED, MACHINE, steps=3, skipped=1)
    reading, turns = 4 * 10 * 0.1 + 4 * 5 * 0.1, 30 * 1.5
    episode = reading + turns + 7.0 + 3.0 + 2 * 0.5
    step = 1.0 + 120 * 0.01 + 2.0
    assert one.step_seconds == pytest.approx(episode + step)
    assert one.tokens_per_second == pytest.approx(120 / (episode + step))
    assert one.trainer_idle == pytest.approx(episode / (episode + step))
    assert (one.lag_max, one.masked, one.length_bias) == (0, 0.0, 1.0)
    assert one.residence_mean == pytest.approx(episode)


def test_running_ahead_hides_the_training() -> None:
    """One step ahead, the slower side alone decides, and the trainer waits for the rest."""
    slow = MACHINE.model_copy(update={"step_seconds": 500.0})
    one = simulate(Plan(2, 2, 1, 1, 1, concurrency=8), FIXED, slow, steps=8, skipped=3)
    assert one.step_seconds == pytest.approx(500.0 + 120 * 0.01 + 2.0)
    assert one.trainer_idle == pytest.approx(0.0)
    assert one.lag_max == 1


@pytest.mark.parametrize(("run_ahead", "staleness", "lag"), [(0, 0, 0), (1, 1, 1), (2, 1, 3), (3, 2, 3), (0.5, 4, 6)])
def test_the_bounds_hold_and_everything_is_trained(run_ahead: float, staleness: int, lag: int) -> None:
    one = simulate(Plan(4, 4, run_ahead, staleness, lag, 64), HEAVY, BUSY, steps=40, skipped=0, seed=1)
    assert one.group_lag_max <= lag
    assert one.lag_max <= one.group_lag_max
    assert one.trained_lag_max <= staleness
    assert (one.masked > 0) == (one.lag_max > staleness)
    assert 0 < one.of_bound <= 1.0


def test_more_freedom_is_faster() -> None:
    plans = [Plan(4, 4, *knobs, 64) for knobs in ((0, 0, 0), (1, 1, 1), (3, 8, 12))]
    rates = [simulate(plan, HEAVY, BUSY, steps=40, skipped=10).tokens_per_second for plan in plans]
    assert rates == sorted(rates)
    assert rates[2] > 2 * rates[0]


def test_equal_seeds_give_equal_predictions() -> None:
    plan = Plan(4, 4, 2, 2, 3, 32)
    first, again, other = (simulate(plan, HEAVY, BUSY, steps=8, skipped=2, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_a_plan_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer is so slow, and may be left so far behind, that samples would start until memory ends."""
    monkeypatch.setattr("stream_rl.tuning.simulation.MOST_LIVE", 1000)
    slow = BUSY.model_copy(update={"step_seconds": 1e9})
    with pytest.raises(ValueError, match=r"run_ahead=1e.06 with groups_per_step=4 lets more than 1,000 samples be"):
        simulate(Plan(4, 4, 1e6, 8, 10**6, 512), FIXED, slow, steps=3, skipped=1)


def test_an_episode_may_generate_nothing() -> None:
    silent = Episode(10, np.array([0]), np.array([0]), np.array([1.0]))
    one = simulate(Plan(2, 2, 1, 1, 1, 4), Workload([[*FIXED.episodes, silent]]), MACHINE, steps=6, skipped=2)
    assert one.lag_max <= 1
    with pytest.raises(ValueError, match="in which something is generated"):
        Workload([[silent]])


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="run_ahead=3 is more than max_lag=2"):
        simulate(Plan(4, 4, 3, 2, 2, 32), HEAVY, BUSY)
    with pytest.raises(ValueError, match="leaves none of steps=5"):
        simulate(Plan(4, 4, 1, 2, 2, 32), HEAVY, BUSY, steps=5, skipped=5)
