"""Which plan is recommended, from predictions that are given."""

from __future__ import annotations

from stream_rl.tuning import Candidate, Plan, Prediction, explore, grid, recommend

BASE = Plan(8, 4, run_ahead=3, max_staleness=8, max_lag=12, concurrency=64)


def predicted(rate: float, lag: float = 1.0) -> Prediction:
    return Prediction(rate, 0.9, 0.1, 0.1, 10.0, lag, 1.0, 2.0, 3, 3, 2, 0.0, 1.0, 20.0, 30.0)


def plan(staleness: int, concurrency: int = 64) -> Plan:
    return next(iter(grid(BASE, [staleness], [concurrency])))


def test_a_bound_sets_the_other_two_knobs() -> None:
    assert [(p.run_ahead, p.max_staleness, p.max_lag) for p in grid(BASE, [0, 1, 2, 8])] == [
        (0, 0, 0), (1, 1, 2), (2, 2, 3), (3, 8, 12),
    ]  # fmt: skip
    assert [p.concurrency for p in grid(BASE, [2], [32, 128])] == [32, 128]


def test_the_least_stale_of_those_nearly_as_fast() -> None:
    rates = {0: 50.0, 1: 90.0, 2: 98.5, 4: 100.0, 8: 99.0}
    candidates = [Candidate(plan(bound), predicted(rate, lag=bound)) for bound, rate in rates.items()]
    assert recommend(candidates).plan.max_staleness == 2


def test_of_equals_the_one_with_fewer_samples_in_play() -> None:
    candidates = [Candidate(plan(2, count), predicted(100.0)) for count in (128, 32, 64)]
    assert recommend(candidates).plan.concurrency == 32


def test_the_best_bounds_neighbours_are_tried() -> None:
    def predict(tried: Plan) -> Prediction:
        return predicted(100.0 * min(tried.max_staleness, 2) + tried.concurrency + tried.run_ahead)

    found = [candidate.plan for candidate in explore(BASE, [0, 1, 2], predict)]
    assert len(set(found)) == len(found)
    around = {(p.concurrency, p.run_ahead) for p in found if p.max_staleness == 2}
    assert around == {(64, 2), (32, 2), (128, 2), (64, 1), (64, 3)}
