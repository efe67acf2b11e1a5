"""A run's workload and the speeds of its machine, read off its logs.

What was played stands in the turn log, turn by turn. How fast the engines are is a regression over the same lines: the
seconds of a generation, without those in the queue and those of weight updates, are a constant, a time for each token
that the engine read meanwhile, whoever's it was, as all wait for it, and for each token written a time that grows with
the requests that ran beside it, which the log tells as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_rl.config import Config
from stream_rl.errors import ConfigError
from stream_rl.metrics.run_folder import ended_samples, surviving, surviving_steps, turn_records
from stream_rl.tuning.machine import Machine
from stream_rl.tuning.workload import Episode, Workload

__all__ = ["Fit", "fit_run"]

LEAST_TURNS, LEAST_STEPS = 50, 3
LEAST_TOKEN_SECONDS = 1e-6
Floats = NDArray[np.float64]
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fit:
    """What the logs say; `measured` are the trained tokens a second of the steps after the first."""

    workload: Workload
    machine: Machine
    turns: int
    steps: int
    measured: float


def fit_run(folder: Path, config: Config) -> Fit:
    """Reads a run folder.

    Raises:
        ConfigError: too few turns or steps were logged.
        DataError: a log holds a line that is not JSON.
    """
    turns, steps = list(turn_records(folder)), surviving_steps(folder / "steps.jsonl")
    if len(turns) < LEAST_TURNS or len(steps) < LEAST_STEPS:
        raise ConfigError(
            f"{folder} has logged {len(turns)} turns and {len(steps)} steps, and a fit needs {LEAST_TURNS} and "
            f"{LEAST_STEPS}: let it run longer with metrics.turn_log on, or give a workload"
        )
    workload = Workload(_groups(turns, ended_samples(folder)))
    engines = config.engine.servers
    token, crowd, base, prefill = _engine_seconds(turns, steps, engines)
    fixed, each = _trainer_seconds(steps)
    machine = Machine(
        engines=engines,
        slots=config.engine.max_running_requests,
        token_seconds=max(token, LEAST_TOKEN_SECONDS),
        crowd_seconds=crowd,
        prefill_seconds=prefill,
        turn_seconds=base + float(np.mean([turn["encode_seconds"] + turn["commit_seconds"] for turn in turns])),
        update_seconds=float(np.mean([step["publish_seconds"] for step in steps])),
        step_seconds=fixed,
        train_seconds=each,
        pause_mode=config.engine.pause_mode,
    )
    return Fit(workload, machine, len(turns), len(steps), measured_rate(steps))


def measured_rate(steps: Sequence[Record], skipped: int = 1) -> float:
    """Trained tokens a second between the ends of step `skipped` and the last."""
    seconds = steps[-1]["time"] - steps[skipped - 1]["time"]
    return float(sum(step["trained_tokens"] for step in steps[skipped:]) / seconds)


def _groups(turns: Sequence[Record], ended: Sequence[Record]) -> list[list[Episode]]:
    """The whole groups; only those before the first unfinished one if they are half of all: later ones are short."""
    finished = {record["sample"]: record["group"] for record in ended if record["kind"] == "finished"}
    logged: dict[str, list[Record]] = defaultdict(list)
    for turn in turns:
        logged[turn["sample"]].append(turn)
    episodes: dict[int, list[Episode]] = defaultdict(list)
    for sample, group in finished.items():
        if sample in logged:
            episodes[group].append(_episode(logged[sample]))
    size = max(map(len, episodes.values()), default=0)
    whole = sorted(group for group, siblings in episodes.items() if len(siblings) == size)
    known = {turn["group"] for turn in turns}
    first_open = min(known - set(whole), default=max(known) + 1)
    unbiased = [group for group in whole if group < first_open]
    return [episodes[group] for group in (unbiased if 2 * len(unbiased) >= len(whole) else whole)]


def _episode(records: Sequence[Record]) -> Episode:
    """One sample, turn by turn."""
    kept = surviving((record["time"], record["position"], record) for record in records)
    columns: dict[str, defaultdict[int, float]] = {
        name: defaultdict(float) for name in ("generated", "observation", "env_seconds")
    }
    for record in kept:
        for name, values in columns.items():
            values[record["turn"]] += record[name]
    generated, observation, seconds = (np.array(list(values.values())) for values in columns.values())
    return Episode(kept[0]["prompt"], generated.astype(np.int64), observation.astype(np.int64), seconds)


def _engine_seconds(
    turns: Sequence[Record], steps: Sequence[Record], engines: int
) -> tuple[float, float, float, float]:
    """Seconds a token, more for each request beside it, of a turn, and for each token read."""
    column = {name: np.array([turn[name] for turn in turns], np.float64) for name in (
        "time", "generate_seconds", "queue_seconds", "env_seconds", "encode_seconds", "commit_seconds", "generated",
    )}  # fmt: skip
    ends = column["time"] - column["commit_seconds"] - column["encode_seconds"] - column["env_seconds"]
    begins = ends - column["generate_seconds"] + column["queue_seconds"]
    updates = np.array([(step["time"] - step["checkpoint_seconds"], step["publish_seconds"]) for step in steps])
    paused = _share_of(updates[:, 0] - updates[:, 1], updates[:, 0], begins, ends)
    beside = _share_of(begins, ends, begins, ends) / np.maximum(ends - begins, 1e-9) / engines
    seconds = np.maximum(ends - begins - paused, 0.0)
    written, read = column["generated"], _begun_within(begins, ends, _tokens_read(turns)) / engines
    base, prefill, token, crowd = _least_squares(
        np.column_stack([np.ones_like(written), read, written, written * beside]), seconds
    )
    return token, crowd, base, prefill


def _tokens_read(turns: Sequence[Record]) -> Floats:
    """Tokens that the engine had not seen before each record's generation: the prompt, or the last observation."""
    before = {(turn["sample"], turn["position"] + 1): turn["observation"] for turn in turns}
    return np.array([before.get((turn["sample"], turn["position"]), turn["prompt"]) for turn in turns], np.float64)


def _begun_within(begins: Floats, ends: Floats, amounts: Floats) -> Floats:
    """For each [begin, end], the amounts, added up, of all that began in it, itself included."""
    order = np.argsort(begins)
    total = np.concatenate([[0.0], np.cumsum(amounts[order])])
    first, last = np.searchsorted(begins[order], begins), np.searchsorted(begins[order], ends, side="right")
    within: Floats = total[last] - total[first]
    return within


def _share_of(starts: Floats, stops: Floats, begins: Floats, ends: Floats) -> Floats:
    """For each [begin, end], the seconds in it of all intervals [start, stop], added up."""
    order = np.concatenate([starts, stops])
    change = np.concatenate([np.ones_like(starts), -np.ones_like(stops)])
    places = np.argsort(order, kind="stable")
    times, running = order[places], np.cumsum(change[places])
    total = np.concatenate([[0.0], np.cumsum(np.diff(times) * running[:-1])])
    share: Floats = np.interp(ends, times, total) - np.interp(begins, times, total)
    return share


def _trainer_seconds(steps: Sequence[Record]) -> tuple[float, float]:
    """Seconds of a step, and for each of its generated tokens."""
    tokens = np.array([step["generated_tokens"] for step in steps], np.float64)
    seconds = np.array([step["load_seconds"] + step["train_seconds"] + step["checkpoint_seconds"] for step in steps])
    fixed, each = _least_squares(np.column_stack([np.ones_like(tokens), tokens]), seconds)
    return fixed, each


def _least_squares(columns: Floats, target: Floats) -> list[float]:
    """Least squares without negative coefficients: the most negative is left out, as long as there is one."""
    used = list(range(columns.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(columns[:, used], target, rcond=None)
        if (found >= 0).all() or len(used) == 1:
            break
        used.pop(int(found.argmin()))
    coefficients = np.zeros(columns.shape[1])
    coefficients[used] = np.maximum(found, 0.0)
    return [float(value) for value in coefficients]
