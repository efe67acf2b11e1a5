"""What a simulated run amounts to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Prediction", "Tally", "TrainedGroup"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is to be expected of a run.

    tokens_per_second  generated tokens that carry loss
    of_bound           the same as a share of what no schedule can exceed
    engine_idle        share of what the engines could write that they did not
    trainer_idle       share of the time in which the trainer waited for groups
    step_seconds       from step to step
    lag_mean, lag_p50, lag_p99, lag_max   of samples: their oldest token's when trained, in versions
    group_lag_max      the largest age of a group's v0
    trained_lag_max    the largest lag of a token that carries loss
    masked             share of the trained samples' tokens that carry no loss
    length_bias        mean length of the samples trained, over that of those started meanwhile
    residence_mean, residence_max         seconds from a group's admission to its step
    """

    tokens_per_second: float
    of_bound: float
    engine_idle: float
    trainer_idle: float
    step_seconds: float
    lag_mean: float
    lag_p50: float
    lag_p99: float
    lag_max: int
    group_lag_max: int
    trained_lag_max: int
    masked: float
    length_bias: float
    residence_mean: float
    residence_max: float


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    """One group of a step: when it was admitted, its lag, and each sample's tokens by the version that wrote them."""

    admitted: float
    lag: int
    written: Sequence[Mapping[int, float]]


class Tally:
    """Counts from `begin` on."""

    def __init__(self) -> None:
        self.steps = 0
        self.counting = False
        self._began = self._generated = self._waited = 0.0
        self._steps_before = 0
        self._waits_since: float | None = 0.0
        self._start_lengths: list[int] = []
        self._tokens: list[float] = []
        self._masked: list[float] = []
        self._lags: list[int] = []
        self._trained_lags: list[int] = []
        self._group_lags: list[int] = []
        self._residences: list[float] = []

    def begin(self, now: float, generated: float) -> None:
        """Everything before is forgotten."""
        self.counting = True
        self._began, self._generated, self._steps_before = now, generated, self.steps
        if self._waits_since is not None:
            self._waits_since = now

    def started(self, tokens: int) -> None:
        """A sample that will have so many tokens begins."""
        if self.counting:
            self._start_lengths.append(tokens)

    def took(self, now: float, version: int, max_staleness: int, groups: Sequence[TrainedGroup]) -> None:
        """The trainer has the groups of the step that starts from `version`."""
        waited, self._waits_since = now - (now if self._waits_since is None else self._waits_since), None
        if not self.counting:
            return
        self._waited += waited
        for group in groups:
            self._group_lags.append(group.lag)
            self._residences.append(now - group.admitted)
            for written in group.written:
                self._trained(version, max_staleness, written)

    def _trained(self, version: int, max_staleness: int, written: Mapping[int, float]) -> None:
        fresh = {version - wrote: n for wrote, n in written.items() if version - wrote <= max_staleness}
        total = sum(written.values())
        self._tokens.append(total)
        self._masked.append(total - sum(fresh.values()))
        self._lags.append(version - min(written, default=version))
        self._trained_lags.append(max(fresh, default=0))

    def stepped(self, now: float) -> None:
        """A step ends, and the trainer waits for the next."""
        self.steps += 1
        self._waits_since = now

    def prediction(self, now: float, generated: float, *, bound: float, capacity: float) -> Prediction:
        """All of it, as it stands at `now`."""
        seconds, steps = now - self._began, self.steps - self._steps_before
        tokens, masked = np.array(self._tokens), np.array(self._masked)
        rate = float((tokens.sum() - masked.sum()) / seconds)
        lags = np.array(self._lags)
        return Prediction(
            tokens_per_second=rate,
            of_bound=rate / bound,
            engine_idle=1 - (generated - self._generated) / seconds / capacity,
            trainer_idle=self._waited / seconds,
            step_seconds=seconds / steps,
            lag_mean=float(lags.mean()),
            lag_p50=float(np.quantile(lags, 0.5)),
            lag_p99=float(np.quantile(lags, 0.99)),
            lag_max=int(lags.max()),
            group_lag_max=max(self._group_lags),
            trained_lag_max=max(self._trained_lags),
            masked=float(masked.sum() / tokens.sum()),
            length_bias=float(tokens.mean() / np.mean(self._start_lengths)) if self._start_lengths else float("nan"),
            residence_mean=float(np.mean(self._residences)),
            residence_max=max(self._residences),
        )
