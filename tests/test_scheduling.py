"""The lag bound and the absence of deadlock, under schedules that hypothesis and a burst of slow groups make as bad as
they can."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stream_rl.scheduling import Knobs, SchedulingState, choose_batch, loss_mask, may_admit

Choose = Callable[[Knobs, SchedulingState], tuple[int, ...] | None]


def state(steps: int, engine: int | None, live: dict[int, int], complete: set[int]) -> SchedulingState:
    return SchedulingState(steps, engine, live, complete)


class TestAdmission:
    knobs = Knobs(groups_per_step=4, run_ahead=1, max_lag=2)

    def test_opens_up_to_run_ahead_steps_of_groups(self) -> None:
        live = dict.fromkeys(range(7), 0)
        assert may_admit(self.knobs, state(0, 0, live, set()))
        assert not may_admit(self.knobs, state(0, 0, {**live, 7: 0}, set()))

    def test_a_fraction_opens_part_of_a_step(self) -> None:
        knobs = Knobs(groups_per_step=4, run_ahead=0.25, max_lag=2)
        assert may_admit(knobs, state(0, 0, dict.fromkeys(range(4), 0), set()))
        assert not may_admit(knobs, state(0, 0, dict.fromkeys(range(5), 0), set()))
        assert may_admit(knobs, state(1, 0, {}, set()))
        assert not may_admit(knobs, state(1, 0, {0: 0}, set()))

    def test_closes_while_engines_are_behind(self) -> None:
        assert may_admit(self.knobs, state(1, 0, {}, set()))
        assert not may_admit(self.knobs, state(2, 0, {}, set()))

    def test_nothing_is_admitted_while_no_engine_serves(self) -> None:
        assert not may_admit(self.knobs, state(0, None, {}, set()))


class TestPull:
    def test_takes_the_oldest_complete_groups(self) -> None:
        live = {5: 1, 2: 1, 9: 0, 3: 1}
        assert choose_batch(Knobs(2, 1, 4), state(1, 1, live, {5, 2, 9})) == (9, 2)

    def test_waits_for_a_full_step(self) -> None:
        assert choose_batch(Knobs(2, 1, 4), state(0, 0, {0: 0, 1: 0}, {0})) is None

    def test_waits_for_a_group_due_now(self) -> None:
        live = {0: 0, 1: 1, 2: 1}
        assert choose_batch(Knobs(2, 2, 2), state(2, 2, live, {1, 2})) is None

    def test_waits_when_too_many_are_due_at_the_next_step(self) -> None:
        live = dict.fromkeys(range(3), 0) | {3: 1, 4: 1}
        assert choose_batch(Knobs(2, 2, 2), state(1, 1, live, {3, 4})) is None
        assert choose_batch(Knobs(2, 2, 2), state(1, 1, live, {0, 3, 4})) == (0, 3)

    def test_a_bound_already_broken_does_not_block(self) -> None:
        live = dict.fromkeys(range(5), 0)
        assert choose_batch(Knobs(2, 2, 2), state(9, 9, live, set(live))) == (0, 1)

    def test_overdue_groups_go_strictly_oldest_first(self) -> None:
        # Admitted under max_lag=8, then it was lowered to 2: group 0 is still within the 8 it was promised.
        live = {0: 1, 1: 2, 2: 2, 3: 3, 4: 3}
        assert choose_batch(Knobs(2, 2, 2), state(9, 9, live, {1, 2, 3, 4})) is None
        assert choose_batch(Knobs(2, 2, 2), state(9, 9, live, {0, 1, 3, 4})) == (0, 1)


def test_knobs_that_break_the_proof_are_refused() -> None:
    with pytest.raises(ValueError, match="run_ahead=3 is more than max_lag=2"):
        Knobs(1, run_ahead=3, max_lag=2)


def test_only_fresh_generated_tokens_carry_loss() -> None:
    steps = np.array([2, 3, -1, 5], np.int32)
    assert loss_mask(steps, 5, 2).tolist() == [False, True, False, True]
    assert loss_mask(steps, 5, 0).tolist() == [False, False, False, True]
    # An observation's step -1 is within 8 of version 5, and still no token of the model's.
    assert loss_mask(steps, 5, 8).tolist() == [True, True, False, True]


class Schedules(RuleBasedStateMachine):
    """Groups end, are filtered or die in any order; engines come, go and lag; the trainer replays; settings change.

    `bounds` holds for each live group the largest max_lag since its admission.
    """

    @initialize(size=st.integers(1, 4), quarters=st.integers(0, 12), slack=st.integers(0, 3))
    def begin(self, size: int, quarters: int, slack: int) -> None:
        self.knobs = Knobs(size, quarters / 4, math.ceil(quarters / 4) + slack)
        self.steps = self.published = self.admitted = self.left = 0
        self.engines = {0: 0}
        self.live: dict[int, int] = {}
        self.bounds: dict[int, int] = {}
        self.complete: set[int] = set()
        self.replaying = False

    @property
    def state(self) -> SchedulingState:
        return state(self.steps, min(self.engines.values(), default=None), self.live, self.complete)

    @rule(most=st.integers(1, 8))
    def admit(self, most: int) -> None:
        while most and may_admit(self.knobs, self.state):
            self.live[self.admitted] = min(self.engines.values())
            self.bounds[self.admitted] = self.knobs.max_lag
            self.admitted += 1
            most -= 1

    @rule(quarters=st.integers(0, 12), slack=st.integers(0, 6))
    def settings_change(self, quarters: int, slack: int) -> None:
        self.knobs = Knobs(self.knobs.groups_per_step, quarters / 4, math.ceil(quarters / 4) + slack)
        self.bounds = {group: max(self.bounds[group], self.knobs.max_lag) for group in self.live}

    @precondition(lambda self: len(self.live) > len(self.complete))
    @rule(data=st.data())
    def a_group_completes(self, data: st.DataObject) -> None:
        self.complete.add(data.draw(st.sampled_from(sorted(self.live.keys() - self.complete))))

    @precondition(lambda self: len(self.live) > len(self.complete))
    @rule(data=st.data())
    def a_group_is_filtered_or_dies(self, data: st.DataObject) -> None:
        self.live.pop(data.draw(st.sampled_from(sorted(self.live.keys() - self.complete))))
        self.left += 1

    @precondition(lambda self: not self.replaying)
    @rule()
    def pull(self) -> None:
        batch = choose_batch(self.knobs, self.state)
        for group in batch or ():
            assert self.steps - self.live.pop(group) <= self.bounds[group]
            self.complete.remove(group)
        self.steps += batch is not None

    @precondition(lambda self: not self.replaying)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        self.published = data.draw(st.integers(self.published, self.steps))
        for engine in self.engines:
            if data.draw(st.booleans()):
                self.engines[engine] = self.published

    @rule(engine=st.integers(0, 2))
    def an_engine_joins(self, engine: int) -> None:
        """With the version published last; the buffer refuses one that is older than a live group's v0."""
        if self.published >= max(self.live.values(), default=0):
            self.engines[engine] = self.published

    @rule(engine=st.integers(0, 2))
    def an_engine_is_lost(self, engine: int) -> None:
        self.engines.pop(engine, None)

    @rule()
    def the_trainer_falls_back_and_replays(self) -> None:
        self.replaying = not self.replaying

    @invariant()
    def no_more_groups_are_due_than_steps_can_train(self) -> None:
        for group, v0 in self.live.items():
            steps_left = v0 + self.bounds[group] - self.steps
            as_old = sum(other <= v0 for other in self.live.values())
            assert as_old <= (steps_left + 1) * self.knobs.groups_per_step

    @invariant()
    def every_group_is_accounted_for(self) -> None:
        trained = self.steps * self.knobs.groups_per_step
        assert self.admitted == trained + self.left + len(self.live)

    def teardown(self) -> None:
        """From wherever the schedule ended, a fair one goes on: no deadlock."""
        if not hasattr(self, "knobs"):
            return
        self.replaying = False
        for _ in range(math.ceil(len(self.live) / self.knobs.groups_per_step) + 3):
            before = self.steps
            self.engines = {0: self.steps}
            self.admit(1000)
            self.complete = set(self.live)
            self.pull()
            assert self.steps == before + 1


Schedules.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None, derandomize=True)
TestSchedules = Schedules.TestCase


def largest_lag(choose: Choose, knobs: Knobs, seed: int, steps: int = 50) -> int:
    """Heavy-tailed groups, some filtered, and two steps' worth of groups that take very long; engines update late."""
    rng = random.Random(seed)
    now, busy, done, engine, admitted, worst = 0.0, 0.0, 0, 0, 0, 0
    live: dict[int, int] = {}
    complete: set[int] = set()
    events: list[tuple[float, str, int]] = []
    while done < steps:
        while may_admit(knobs, state(done, engine, live, complete)):
            slow = knobs.groups_per_step <= admitted < 3 * knobs.groups_per_step
            duration = 4000.0 if slow else min(rng.lognormvariate(1, 1.3), 500)
            heapq.heappush(events, (now + duration, "end", admitted))
            live[admitted] = engine
            admitted += 1
        batch = choose(knobs, state(done, engine, live, complete)) if now >= busy else None
        if batch:
            worst = max(worst, *(done - live.pop(group) for group in batch))
            complete -= set(batch)
            done, busy = done + 1, now + 3.0
            heapq.heappush(events, (busy, "trained", done))
            heapq.heappush(events, (busy + rng.uniform(0, 4), "publish", done))
        now, kind, number = heapq.heappop(events)
        if kind == "publish":
            engine = max(engine, number)
        elif kind == "end" and rng.random() < 0.2:
            del live[number]
        elif kind == "end":
            complete.add(number)
    return worst


def overdue_in_any_order(knobs: Knobs, state: SchedulingState) -> tuple[int, ...] | None:
    """The rule for settings that stay: whoever is overdue counts as due now, and the cap lets the youngest go first."""
    size = knobs.groups_per_step
    batch = sorted(state.complete, key=lambda group: (state.live[group], group))[:size]
    for j in range(knobs.max_lag + 1):
        limit = state.steps + j - knobs.max_lag
        due, taken = (sum(state.live[group] <= limit for group in part) for part in (state.live, batch))
        if taken < min(due - j * size, size):
            return None
    return tuple(batch) if len(batch) == size else None


def test_the_rule_must_look_at_overdue_groups_in_order() -> None:
    """max_lag was lowered from 6 to 0: group 0 is at the 6 that it was admitted under, and must not wait longer."""
    lowered = Knobs(2, run_ahead=0, max_lag=0)
    live = {0: 0, 3: 0, 4: 1, 5: 1}
    assert overdue_in_any_order(lowered, state(6, 6, live, {3, 4, 5})) == (3, 4)
    assert choose_batch(lowered, state(6, 6, live, {3, 4, 5})) is None
    assert choose_batch(lowered, state(6, 6, live, set(live))) == (0, 3)


def only_due_now(knobs: Knobs, state: SchedulingState) -> tuple[int, ...] | None:
    """The tempting shorter rule: wait only for groups that are due at this very step."""
    batch = sorted(state.complete, key=lambda group: (state.live[group], group))[: knobs.groups_per_step]
    due = [group for group, v0 in state.live.items() if v0 + knobs.max_lag <= state.steps]
    enough = len(batch) == knobs.groups_per_step and sum(g in batch for g in due) >= min(len(due), len(batch))
    return tuple(batch) if enough else None


@pytest.mark.parametrize(("run_ahead", "max_lag"), [(0, 0), (0.5, 1), (1, 1), (3, 4), (3, 12)])
def test_a_burst_of_slow_groups_stays_within_the_bound(run_ahead: float, max_lag: int) -> None:
    knobs = Knobs(8, run_ahead, max_lag)
    assert max(largest_lag(choose_batch, knobs, seed) for seed in range(5)) <= max_lag


def test_the_rule_must_look_at_every_step_ahead() -> None:
    knobs = Knobs(8, run_ahead=3, max_lag=4)
    assert max(largest_lag(only_due_now, knobs, seed) for seed in range(5)) > 4
