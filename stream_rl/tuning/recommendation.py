"""Which settings the simulator would choose: the fastest, and of those nearly as fast the least stale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from stream_rl.tuning.simulation import Plan, Prediction

__all__ = ["Candidate", "explore", "grid", "neighbours", "plan_for", "recommend", "run_ahead_for"]

NEARLY = 0.98
"""Share of the best throughput that a less stale plan must reach to be preferred."""
LAG_ROOM = 1.5
"""`max_lag` over `max_staleness`: the groups of a few very long samples may get so old before the trainer waits."""
MOST_RUN_AHEAD = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan and what is to be expected of it."""

    plan: Plan
    prediction: Prediction


def plan_for(base: Plan, max_staleness: int) -> Plan:
    """The plan for a bound on staleness, in the proportions of the defaults; 0 is on-policy."""
    return replace(
        base,
        run_ahead=run_ahead_for(max_staleness),
        max_staleness=max_staleness,
        max_lag=math.ceil(LAG_ROOM * max_staleness),
    )


def run_ahead_for(max_staleness: int) -> int:
    """The default's, or as much as the bound lets be of use."""
    return min(MOST_RUN_AHEAD, max_staleness)


def grid(base: Plan, staleness: Iterable[int], concurrency: Iterable[int] = ()) -> list[Plan]:
    """Every bound on staleness with every concurrency, by default the plan's own."""
    counts = tuple(concurrency) or (base.concurrency,)
    return [replace(plan_for(base, bound), concurrency=count) for bound in staleness for count in counts]


def neighbours(plan: Plan) -> list[Plan]:
    """One step in each direction: half and twice the concurrency, one step's groups more and fewer ahead."""
    near = [replace(plan, concurrency=count) for count in (max(plan.concurrency // 2, 1), 2 * plan.concurrency)]
    ahead = [plan.run_ahead - 1, plan.run_ahead + 1]
    return near + [replace(plan, run_ahead=value) for value in ahead if 0 <= value <= plan.max_lag]


def recommend(candidates: Sequence[Candidate]) -> Candidate:
    """The least stale of those within 2% of the fastest; of equals the one with fewer samples in play."""
    fastest = max(candidate.prediction.tokens_per_second for candidate in candidates)
    good = [one for one in candidates if one.prediction.tokens_per_second >= NEARLY * fastest]
    return min(good, key=lambda one: (one.plan.max_staleness, one.prediction.lag_mean, one.plan.concurrency))


def explore(base: Plan, staleness: Sequence[int], predict: Callable[[Plan], Prediction]) -> list[Candidate]:
    """The plans for each bound on staleness, and the neighbours of the best of them."""
    found = [Candidate(plan, predict(plan)) for plan in grid(base, staleness)]
    tried = {candidate.plan for candidate in found}
    return found + [Candidate(plan, predict(plan)) for plan in neighbours(recommend(found).plan) if plan not in tried]
