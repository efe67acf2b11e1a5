"""What a run's own records say, as metrics of the supervisor's.

    samples.jsonl ─► ended      each ended sample once, by its number
    steps.jsonl   ─► stepped    each step once: a replayed one is written, and not counted, again
    the buffer    ─► seen       its counters and states, at each look

A supervisor that is started again reads the files first, so that its counters go on where they were. Producers and
trainers may die at any moment: nothing here is counted in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from stream_rl.metrics import catalog
from stream_rl.metrics.labels import length_bucket
from stream_rl.metrics.run_folder import STEP_PARTS, TRAIN_PARTS
from stream_rl.metrics.step_sinks import StepSink
from stream_rl.sample import Status, StopReason, WeightVersion

__all__ = ["RunFigures", "Snapshot"]

GROUP_STATES = ("live", "complete", "trained", "filtered", "dead_lettered")
SAMPLE_STATES = ("pending", "leased", "resumable")
SETTINGS = ("groups_per_step", "group_size", "run_ahead", "max_staleness", "max_lag", "concurrency")
ZERO_VARIANCE = "zero_variance"

_BY_LAG = {
    "ratio_mean": catalog.TOKEN_RATIO,
    "clip_share": catalog.CLIP_SHARE,
    "engine_trainer_kl": catalog.ENGINE_TRAINER_KL,
    "effective_sample_size": catalog.EFFECTIVE_SAMPLE_SIZE,
}
_OF_STEP = {
    "reward_mean": catalog.REWARD_MEAN,
    "loss": catalog.LOSS,
    "entropy": catalog.ENTROPY,
    "grad_norm": catalog.GRAD_NORM,
    "log_prob_difference": catalog.LOG_PROB_DIFFERENCE,
    "correction_share": catalog.CORRECTION_SHARE,
    "group_lag_max": catalog.GROUP_LAG_MAX,
}


class Engine(Protocol):
    """An engine of the run."""

    @property
    def engine_id(self) -> str:
        """Its name."""

    @property
    def state(self) -> str:
        """Joining or serving."""

    @property
    def version(self) -> WeightVersion | None:
        """What it serves."""


class Snapshot(Protocol):
    """The buffer at one instant, as `TrajectoryBuffer.snapshot` gives it: besides these, the counts by their names."""

    @property
    def rules(self) -> Any:
        """The settings that the buffer enforces."""

    @property
    def recoveries(self) -> Mapping[str, int]:
        """Processes brought back, by kind."""

    @property
    def engines(self) -> Sequence[Engine]:
        """Every engine."""


class RunFigures:
    """One run's figures.

    Args:
        environment: the label of its samples.
        group_size: siblings of a group.
        sinks: what else gets each step once.
    """

    def __init__(self, environment: str, group_size: int, sinks: Sequence[StepSink] = ()) -> None:
        self._environment = environment
        self._group_size = group_size
        self._sinks = sinks
        self._outcome = self._step = 0
        self._finished: dict[int, list[float]] = {}

    def ended(self, outcomes: Iterable[Mapping[str, Any]]) -> None:
        """Counts lines of samples.jsonl, in order."""
        for outcome in outcomes:
            if outcome["number"] <= self._outcome:
                continue
            self._outcome = outcome["number"]
            if outcome["kind"] != "restarted":
                self._count_end(outcome)

    def stepped(self, steps: Iterable[Mapping[str, Any]]) -> None:
        """Counts lines of steps.jsonl, in order."""
        for step in steps:
            self._show_step(step)
            if step["step"] > self._step:
                self._step = step["step"]
                self._count_step(step)
                for sink in self._sinks:
                    sink.write(step)

    def seen(self, snapshot: Snapshot) -> None:
        """Shows the buffer's own counts."""
        counts: Any = snapshot
        for state in GROUP_STATES:
            catalog.GROUPS.set(getattr(counts, state), state=state)
        for state in SAMPLE_STATES:
            catalog.SAMPLES.set(getattr(counts, state), state=state)
        catalog.TURNS_COMMITTED.advance(counts.committed_turns, environment=self._environment)
        catalog.GROUPS_LEFT_OUT.advance(counts.filtered, state="filtered", reason=ZERO_VARIANCE)
        catalog.REFILLS.advance(counts.refills)
        catalog.JOURNAL_BYTES.set(counts.journal_bytes)
        catalog.PRODUCERS.set(counts.producers)
        catalog.OLDEST_PARTIAL_SECONDS.set(counts.oldest_partial_seconds)
        ended = counts.trained + counts.filtered + counts.dead_lettered
        catalog.ACCOUNTING.set(counts.admitted - ended - counts.live)
        catalog.STEPS.inc(0)
        for kind, times in snapshot.recoveries.items():
            catalog.RECOVERIES.advance(times, process=kind)
        for name in SETTINGS:
            catalog.SETTING.set(getattr(snapshot.rules, name), name=name)
        _show_engines(snapshot.engines)

    def close(self) -> None:
        """Closes what else got the steps."""
        for sink in self._sinks:
            sink.close()

    def given_up(self, reasons: Mapping[str, int]) -> None:
        """Shows the dead letters, by their stop reason."""
        for reason in (StopReason.ENV_FAILURE, StopReason.ENGINE_FAILURE):
            catalog.GROUPS_LEFT_OUT.advance(reasons.get(reason, 0), state="dead_lettered", reason=reason.value)

    def _count_end(self, outcome: Mapping[str, Any]) -> None:
        environment = self._environment
        catalog.SAMPLES_ENDED.inc(environment=environment, status=outcome["status"], reason=outcome["stop_reason"])
        catalog.GENERATED.inc(outcome["generated"], environment=environment)
        if outcome["status"] not in (Status.COMPLETED, Status.TRUNCATED):
            return
        catalog.TURNS_PER_SAMPLE.observe(outcome["turns"], environment=environment)
        reward = outcome["reward"]
        catalog.SAMPLE_REWARD.observe(reward, environment=environment)
        catalog.SAMPLE_REWARDS.inc(max(reward, 0.0), environment=environment, sign="+")
        catalog.SAMPLE_REWARDS.inc(max(-reward, 0.0), environment=environment, sign="-")
        catalog.RESPONSE_LENGTH.observe(outcome["response_length"], environment=environment)
        times = self._finished.setdefault(outcome["group"], [])
        times.append(outcome["time"])
        if len(times) == self._group_size:
            catalog.SIBLING_WAIT_SECONDS.observe(max(times) - min(times))
            del self._finished[outcome["group"]]

    def _count_step(self, step: Mapping[str, Any]) -> None:
        catalog.STEPS.inc()
        for part in STEP_PARTS:
            catalog.STEP_SECONDS.inc(step[f"{part}_seconds"], part=part)
        for part in TRAIN_PARTS:
            catalog.TRAIN_SECONDS.inc(step[f"{part}_seconds"], part=part)
        for lag, figures in step["by_lag"].items():
            catalog.TRAINED_TOKENS.inc(figures["tokens"], lag=lag)
        for length, tokens in step["masked_by_length"].items():
            catalog.MASKED_TOKENS.inc(tokens, length=length)
        for reason, seconds in step["wait_reasons"].items():
            catalog.WAIT_SECONDS.inc(seconds, reason=reason, length=length_bucket(step["oldest_group_length"]))
        for lag in step["sample_lags"]:
            catalog.TOKEN_LAG.observe(lag)
        for v0 in step["group_v0"]:
            catalog.GROUP_LAG.observe(step["step"] - 1 - v0)
        catalog.TRAINED_SAMPLES.inc(len(step["sample_lags"]))
        catalog.MIXED_SAMPLES.inc(step["multi_version_samples"])

    def _show_step(self, step: Mapping[str, Any]) -> None:
        catalog.RESPONSE_LENGTH_MAX.set(step["response_length_max"], environment=self._environment)
        for name, gauge in _OF_STEP.items():
            _set(gauge, step[name])
        for lag, figures in step["by_lag"].items():
            for name, gauge in _BY_LAG.items():
                _set(gauge, figures[name], lag=lag)


def _set(gauge: catalog.Metric, value: float | None, **labels: str) -> None:
    """A step without a token of that kind has no such figure; the gauge keeps the last one."""
    if value is not None and not math.isnan(value):
        gauge.set(value, **labels)


def _show_engines(engines: Sequence[Engine]) -> None:
    for state in ("joining", "serving"):
        catalog.ENGINES.set(sum(engine.state == state for engine in engines), state=state)
    for engine in engines:
        if engine.version is not None:
            catalog.ENGINE_VERSION.set(engine.version.step, engine=engine.engine_id)
    catalog.ENGINE_VERSION.forget((engine.engine_id,) for engine in engines if engine.version is not None)
