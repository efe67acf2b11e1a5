"""A discrete-event model of a run, which decides as the real one does: by scheduling.py.

    admit ─► start (up to `concurrency`) ─► turn: engine ─► environment ─► ... ─► group complete ─► step ─► weights
      ▲                                                                                              │
      └──────────────────────────────────────────────────────────────────────────────────────────────┘

What it leaves out: failures, evaluation, filtering, and what the trainer's steps do to the length of episodes.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from stream_rl.scheduling import Knobs, SchedulingState, choose_batch, may_admit
from stream_rl.tuning.engine_model import Engine, Request
from stream_rl.tuning.machine import Machine
from stream_rl.tuning.tally import Prediction, Tally, TrainedGroup
from stream_rl.tuning.workload import Episode, Workload

__all__ = ["Plan", "Prediction", "simulate"]

MOST_LIVE = 100_000
"""Samples of live groups: more are no run's, and would be played until memory or patience ends."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings whose effect is asked for; `concurrency` is that of all producers together."""

    groups_per_step: int
    group_size: int
    run_ahead: float
    max_staleness: int
    max_lag: int
    concurrency: int

    @property
    def knobs(self) -> Knobs:
        """What scheduling.py decides by. Raises ValueError for settings that contradict each other."""
        return Knobs(self.groups_per_step, self.run_ahead, self.max_lag)


def simulate(
    plan: Plan, workload: Workload, machine: Machine, *, steps: int = 70, skipped: int = 20, seed: int = 0
) -> Prediction:
    """Plays `steps` steps, and counts those after the first `skipped`.

    Raises:
        ValueError: the plan's settings contradict each other or let more than MOST_LIVE samples be live, or no step
            would be left to count.
    """
    if skipped >= steps:
        raise ValueError(f"skipped={skipped} leaves none of steps={steps} to count")
    return _Run(plan, workload, machine, seed).play(steps, skipped)


@dataclass(eq=False, slots=True)
class _Sample:
    group: _Group
    episode: Episode
    turn: int = 0
    engine: int | None = None
    context: int = 0
    written: dict[int, float] = field(default_factory=dict)
    cached_at: int = -1


@dataclass(eq=False, slots=True)
class _Group:
    number: int
    v0: int
    left: int
    admitted: float
    samples: list[_Sample] = field(default_factory=list)


class _Run:
    """One simulated run. Time stands in `now`; events are calls, in the order of their times."""

    def __init__(self, plan: Plan, workload: Workload, machine: Machine, seed: int) -> None:
        self._plan, self._workload, self._machine = plan, workload, machine
        self._knobs = plan.knobs
        self._random = np.random.default_rng(seed)
        self._engines = [Engine(machine) for _ in range(machine.engines)]
        self._ends = [float("inf")] * machine.engines
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._groups: dict[int, _Group] = {}
        self._live: dict[int, int] = {}
        self._complete: set[int] = set()
        self._queue: deque[_Sample] = deque()
        self._admitted = self._playing = 0
        self._training = False
        self._tally = Tally()
        self.now = 0.0
        self.steps = 0

    def play(self, steps: int, skipped: int) -> Prediction:
        """Runs to the end of step `steps`."""
        self._start()
        while self._tally.steps < steps:
            if self._tally.steps == skipped and not self._tally.counting:
                self._tally.begin(self.now, self._generated())
            self._happen()
        bound = self._machine.bound(self._workload, self._plan.groups_per_step * self._plan.group_size)
        capacity = self._machine.engine_tokens_per_second(self._workload)
        return self._tally.prediction(self.now, self._generated(), bound=bound, capacity=capacity)

    def _happen(self) -> None:
        """The next event: an engine's, or one that was put off until now."""
        engine = min(range(len(self._engines)), key=self._ends.__getitem__)
        if self._events and self._events[0][0] <= self._ends[engine]:
            self.now, _, act = heapq.heappop(self._events)
            act()
            return
        self.now = self._ends[engine]
        self._engines[engine].advance(self.now)
        request = self._engines[engine].end()
        self._look_at(engine)
        request.then(request)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), act))

    def _look_at(self, engine: int) -> None:
        self._ends[engine] = self._engines[engine].next_end()

    def _generated(self) -> float:
        for engine in self._engines:
            engine.advance(self.now)
        return sum(engine.generated for engine in self._engines)

    @property
    def _state(self) -> SchedulingState:
        version = min(engine.version for engine in self._engines)
        return SchedulingState(self.steps, version, self._live, self._complete)

    # Samples

    def _start(self) -> None:
        """Starts what producers have room for: the oldest group first, and new groups while admission is open."""
        while self._playing < self._plan.concurrency:
            if not self._queue and not self._admit():
                return
            sample = self._queue.popleft()
            self._playing += 1
            self._tally.started(sample.episode.tokens)
            self._generate(sample)

    def _admit(self) -> bool:
        if not may_admit(self._knobs, self._state):
            return False
        if (len(self._groups) + 1) * self._plan.group_size > MOST_LIVE:
            raise ValueError(
                f"run_ahead={self._plan.run_ahead:g} with groups_per_step={self._plan.groups_per_step} lets more than "
                f"{MOST_LIVE:,} samples be live at once: lower one"
            )
        version = min(engine.version for engine in self._engines)
        group = _Group(self._admitted, version, self._plan.group_size, self.now)
        self._admitted += 1
        episodes = self._workload.group(self._random, self._plan.group_size)
        group.samples = [_Sample(group, episode) for episode in episodes]
        self._groups[group.number], self._live[group.number] = group, version
        self._queue.extend(group.samples)
        return True

    def _generate(self, sample: _Sample) -> None:
        if sample.engine is None:
            sample.engine = min(range(len(self._engines)), key=lambda number: self._engines[number].load)
        read = sample.episode.prompt if sample.turn == 0 else int(sample.episode.observation[sample.turn - 1])
        sample.context += read
        tokens = int(sample.episode.generated[sample.turn])
        engine = self._engines[sample.engine]
        engine.advance(self.now)
        ended = partial(self._generated_turn, sample)
        engine.submit(Request(tokens, read, sample.context, ended, cached_at=sample.cached_at))
        self._look_at(sample.engine)

    def _generated_turn(self, sample: _Sample, request: Request) -> None:
        for version, tokens in request.written.items():
            sample.written[version] = sample.written.get(version, 0.0) + tokens
        sample.cached_at = request.cached_at
        sample.context += request.tokens
        seconds = float(sample.episode.env_seconds[sample.turn]) + self._machine.turn_seconds
        self._after(seconds, lambda: self._acted(sample))

    def _acted(self, sample: _Sample) -> None:
        sample.turn += 1
        if sample.turn < len(sample.episode.generated):
            self._generate(sample)
            return
        self._playing -= 1
        group = sample.group
        group.left -= 1
        if not group.left:
            self._complete.add(group.number)
            self._take_step()
        self._start()

    # The trainer

    def _take_step(self) -> None:
        if self._training or (batch := choose_batch(self._knobs, self._state)) is None:
            return
        groups = [self._groups.pop(number) for number in batch]
        for number in batch:
            del self._live[number]
        self._complete.difference_update(batch)
        tokens = sum(sample.episode.tokens for group in groups for sample in group.samples)
        self._training = True
        rows = [
            TrainedGroup(group.admitted, self.steps - group.v0, [sample.written for sample in group.samples])
            for group in groups
        ]
        self._tally.took(self.now, self.steps, self._plan.max_staleness, rows)
        self.steps += 1
        seconds = self._machine.step_seconds + tokens * self._machine.train_seconds
        self._after(seconds, self._publish)
        self._start()

    def _publish(self) -> None:
        for number, engine in enumerate(self._engines):
            engine.advance(self.now)
            engine.pause()
            self._look_at(number)
        self._after(self._machine.update_seconds, self._published)

    def _published(self) -> None:
        for number, engine in enumerate(self._engines):
            engine.advance(self.now)
            engine.resume(self.steps)
            self._look_at(number)
        self._training = False
        self._tally.stepped(self.now)
        self._take_step()
        self._start()
