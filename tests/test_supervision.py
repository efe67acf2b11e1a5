"""The policy of deaths: forgiven while the run makes progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.errors import RepeatedDeaths
from stream_rl.supervision import DeathBudget


def test_deaths_without_progress_end_the_run_with_the_last_cause() -> None:
    budget = DeathBudget(3)
    budget.spend("engine", 7, "first")
    budget.spend("engine", 7, "second")
    with pytest.raises(RepeatedDeaths, match=r"engine died 3 times at step 7 .*third"):
        budget.spend("engine", 7, "third")


def test_kinds_have_budgets_of_their_own() -> None:
    budget = DeathBudget(2)
    budget.spend("engine", 0, "a")
    budget.spend("producer", 0, "b")
    with pytest.raises(RepeatedDeaths):
        budget.spend("producer", 0, "c")


@given(st.lists(st.booleans(), max_size=60), st.integers(2, 5))
def test_a_death_is_forgiven_exactly_while_fewer_than_the_limit_happened_since_the_last_step(
    events: list[bool], limit: int
) -> None:
    budget, step, deaths = DeathBudget(limit), 0, 0
    for progress in events:
        if progress:
            step, deaths = step + 1, 0
            continue
        deaths += 1
        if deaths == limit:
            with pytest.raises(RepeatedDeaths):
                budget.spend("trainer", step, "killed")
            return
        budget.spend("trainer", step, "killed")
