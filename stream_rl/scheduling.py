"""When a group may start, when it is trained, and which of its tokens carry loss: pure decisions, and why they hold.

Definitions, all in trainer steps:

    T        steps in the ledger; the trainer's weights are version T when it pulls the batch of step T + 1
    e        the oldest version on any serving engine
    v0       stamped on a group at its admission as the e of that moment, never changed: no token of it is older
    B        groups a step takes (`groups_per_step`)
    K, W     `run_ahead` and `max_lag`, with K <= W; K = 0.25 lets a quarter of a step's groups start before their step
    lag      of a token: T - the version that wrote it, when it is trained; of a sample: its oldest generated token's;
             of a group: T - v0, at least the lag of each of its tokens

    live     a group from its admission until it is trained, filtered or dead-lettered

Rules:

    admit    a group only while live + B * (T - e) < (K + 1) * B
    pull     let N_j be the live groups with v0 + W <= T + j (due within j steps) and p_j those of them in the batch of
             the B oldest complete groups: take it only when p_j >= min(N_j - max(j, 0) * B, B) for every j <= W
    mask     a token older than T - max_staleness carries no loss; its sample's reward still counts in the baseline

The bound: if every live group completes or leaves in finite time, and engines' versions never go back, then no trained
group has lag over W, no token in the loss has lag over max_staleness, nothing is dropped for its age, and the run never
stops. When K and W change while the run is live, W is the largest max_lag in force from the group's admission to its
step: a group admitted after W was lowered keeps to the lower one, whatever the older groups do.

Why, at first for settings that stay. Before every pull N_j <= (j + 1) * B holds for 0 <= j <= W: no more groups are due
than the steps left can train, and none is overdue.

- Admission keeps it. A new group is due in j0 = v0 + W - T steps, with v0 = e. The rule says that live before it is
  less than (K + 1 - T + v0) * B = (K + 1 + j0 - W) * B <= (j0 + 1) * B, a whole number; so live after it is at most
  (j0 + 1) * B. Hence N_j <= live <= (j + 1) * B for every j >= j0, and the N_j below j0 do not count this group. As one
  group at least is live, j0 >= 0: none is born overdue.
- A pull keeps it. N_j - j * B <= B before it, so the min in the rule is the first term, and at most j * B of those due
  within j are left. One step later they are the ones due within j - 1. For j = W, all live groups together are at
  most (K + 1) * B <= (W + 1) * B.
- Filtering and dead letters only remove groups.

At j = 0 the rule takes every group due now; hence T - v0 <= W for all that are trained. The run cannot stop: once all
live groups are complete, either fewer than B are live and, as engines catch up with T, admission is open; or the B
oldest satisfy the rule, for the oldest groups are the first due: p_j = min(N_j, B).

With settings that change, take a live group of version v0 and let M be the largest W since its admission; write n for
the live groups as old as it or older, and j for v0 + M - T, the steps it has left by M. Then n <= (j + 1) * B before
every pull. At its admission, and at that of every later group that counts into n (those have the same v0: e never falls
below the v0 of a live group), the rule says so for a W <= M, hence for M. At a pull under a W <= M the group is due in
i = v0 + W - T <= j steps, and the rule, which looks at overdue groups too (i < 0), takes at least
min(n - max(i, 0) * B, B) >= n - j * B of the n; so at most j * B are left, one step later. At j = 0 all of them are
taken. While older groups drain after W was lowered, the rule takes overdue ones strictly oldest first.

Looking only at j = 0 is not enough: too many groups may fall due at once, and then some step comes too late for them.
Looking only at j >= 0 is not enough once W was lowered: a batch of overdue groups that happen to be complete would pass
over an older one, beyond even the W it was admitted under. Groups that left by filter or dead letter must give their
place back, or admission closes for ever. Without the cap B in the rule, groups made overdue would block every pull.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_rl.sample import OBSERVATION_STEP, Int32

__all__ = ["Knobs", "SchedulingState", "choose_batch", "loss_mask", "may_admit"]


@dataclass(frozen=True, slots=True)
class Knobs:
    """The settings that the decisions depend on. Raises ValueError when run_ahead is more than max_lag."""

    groups_per_step: int
    run_ahead: float
    max_lag: int

    def __post_init__(self) -> None:
        if self.run_ahead > self.max_lag:
            raise ValueError(f"run_ahead={self.run_ahead:g} is more than max_lag={self.max_lag}: lower it")


@dataclass(frozen=True, slots=True)
class SchedulingState:
    """The run as the scheduler sees it: `live` maps each live group to its v0, `complete` are those of them that wait.

    `engine_version` is None while no engine serves.
    """

    steps: int
    engine_version: int | None
    live: Mapping[int, int]
    complete: Collection[int]


def may_admit(knobs: Knobs, state: SchedulingState) -> bool:
    """Whether one more group may be admitted now, stamped with v0 = `state.engine_version`."""
    if state.engine_version is None:
        return False
    behind = state.steps - state.engine_version
    return len(state.live) + knobs.groups_per_step * behind < (knobs.run_ahead + 1) * knobs.groups_per_step


def choose_batch(knobs: Knobs, state: SchedulingState) -> tuple[int, ...] | None:
    """The groups that the next step trains, oldest first, or None: the trainer waits."""
    size = knobs.groups_per_step
    batch = sorted(state.complete, key=lambda group: (state.live[group], group))[:size]
    if len(batch) < size:
        return None
    for limit in range(min(state.live.values()), state.steps + 1):
        steps_left = max(limit + knobs.max_lag - state.steps, 0)
        due = sum(v0 <= limit for v0 in state.live.values())
        taken = sum(state.live[group] <= limit for group in batch)
        if taken < min(due - steps_left * size, size):
            return None
    return tuple(batch)


def loss_mask(version_steps: Int32, trainer_version: int, max_staleness: int) -> NDArray[np.bool_]:
    """Which response tokens carry loss when trained by weights `trainer_version` (T, the step's number less one).

    `version_steps` int32 (r,) is `Sample.version_steps`; the answer is bool (r,), False on observations.
    """
    mask: NDArray[np.bool_] = (version_steps != OBSERVATION_STEP) & (version_steps >= trainer_version - max_staleness)
    return mask
