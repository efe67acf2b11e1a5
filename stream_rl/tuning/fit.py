"""A run's workload and the speeds of its machine, read off its logs.

What was played stands in the turn log, turn by turn. How fast the engines are is a regression over the same lines: the
seconds of a generation, without those in the queue and those of weight updates, are a constant, a time for each token
that the engine read meanwhile, whoever's it was, as all wait for it, and for each token written a time that grows with
the requests that ran beside it, which the log tells as well. It does not tell which engine wrote a line: what others
read and how many they are counts as if spread over all engines evenly. Unless weights are exchanged in place, an update
has every context read anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_rl.config import Config
from stream_rl.errors import ConfigError, DataError
from stream_rl.metrics import turn_log
from stream_rl.metrics.run_folder import TURN_PARTS, ended_samples, surviving, surviving_steps, turn_records
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
        ConfigError: too few turns or steps were logged, or no whole group.
        DataError: a log holds a line that is not JSON, or a record without a number that is needed.
    """
    turns, steps = _turns(folder), _steps(folder)
    if len(turns) < LEAST_TURNS or len(steps) < LEAST_STEPS:
        raise ConfigError(
            f"{folder} has logged {len(turns)} turns and {len(steps)} steps, and a fit needs {LEAST_TURNS} and "
            f"{LEAST_STEPS}: let it run longer with metrics.turn_log on, or give a workload"
        )
    try:
        workload = Workload(_groups(turns, ended_samples(folder)))
    except ValueError as error:
        raise ConfigError(f"{folder} has logged too little, {error}: let it run longer, or give a workload") from error
    base, prefill, token, crowd = _engine_seconds(turns, steps, config)
    fixed, each = _trainer_seconds(steps)
    machine = Machine(
        engines=config.engine.servers,
        slots=config.engine.max_running_requests,
        token_seconds=max(token, LEAST_TOKEN_SECONDS),
        crowd_seconds=crowd,
        prefill_seconds=prefill,
        turn_seconds=_besides(turns, base),
        update_seconds=float(np.mean([step["publish_seconds"] for step in steps])),
        step_seconds=fixed,
        train_seconds=each,
        pause_mode=config.engine.pause_mode,
    )
    return Fit(workload, machine, len(turns), len(steps), measured_rate(steps))


def _turns(folder: Path) -> Sequence[Record]:
    turns = list(turn_records(folder))
    _check(turns, folder / "turns", ("time", "position", "prompt", "generated", "observation", *TURN_PARTS))
    return turns


def _steps(folder: Path) -> Sequence[Record]:
    log = folder / "steps.jsonl"
    numbers = [f"{part}_seconds" for part in ("load", "train", "publish", "checkpoint")]
    _check(turn_log.read(log), log, ("step", "time", "generated_tokens", "trained_tokens", *numbers))
    return surviving_steps(log)


def _check(records: Iterable[Any], log: Path, numbers: Sequence[str]) -> None:
    """Raises DataError for a record that lacks a number, as one written by hand may."""
    for record in records:
        for name in numbers:
            if not isinstance(record, dict) or not isinstance(record.get(name), int | float):
                raise DataError(f"{log} holds a record without {name} as a number, remove it: {str(record)[:200]}")


def measured_rate(steps: Sequence[Record], skipped: int = 1) -> float:
    """Trained tokens a second between the ends of step `skipped` and the last."""
    seconds = steps[-1]["time"] - steps[skipped - 1]["time"]
    return float(sum(step["trained_tokens"] for step in steps[skipped:]) / max(seconds, 1e-9))


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


def _besides(turns: Sequence[Record], base: float) -> float:
    """Seconds of a whole turn besides engine and environment; one that was cut or chunked has several records."""
    seconds = sum(base * (turn["generate_seconds"] > 0) + turn["encode_seconds"] + turn["commit_seconds"]
                  for turn in turns)  # fmt: skip
    return float(seconds / max(sum(bool(turn["complete"]) for turn in turns), 1))


def _engine_seconds(turns: Sequence[Record], steps: Sequence[Record], config: Config) -> list[float]:
    """Seconds of a turn, for each token read, for each written, and more for each of the requests then under way."""
    engines = config.engine.servers
    column = {name: np.array([turn[name] for turn in turns], np.float64) for name in (
        "time", "generate_seconds", "queue_seconds", "env_seconds", "encode_seconds", "commit_seconds", "generated",
    )}  # fmt: skip
    ends = column["time"] - column["commit_seconds"] - column["encode_seconds"] - column["env_seconds"]
    begins = ends - column["generate_seconds"] + column["queue_seconds"]
    updates = np.array([(step["time"] - step["checkpoint_seconds"], step["publish_seconds"]) for step in steps])
    paused = _share_of(updates[:, 0] - updates[:, 1], updates[:, 0], begins, ends)
    all_beside = _share_of(begins, ends, begins, ends) / np.maximum(ends - begins, 1e-9)
    beside = 1 + (all_beside - 1) / engines
    flushes = np.sort(updates[:, 0] - updates[:, 1] / 2) if config.engine.pause_mode != "in_place" else np.zeros(0)
    read = _tokens_read(turns, begins, ends, flushes, engines)
    seconds, written = np.maximum(ends - begins - paused, 0.0), column["generated"]
    columns = np.column_stack([np.ones_like(written), read, written, written * beside])
    asked = column["generate_seconds"] > 0  # else the record only closes a turn whose tokens came before
    return _least_squares(columns[asked], seconds[asked])


def _tokens_read(turns: Sequence[Record], begins: Floats, ends: Floats, flushes: Floats, engines: int) -> Floats:
    """Tokens that an engine read during each generation: for itself all, for the others an engine's share of them."""
    context, new = _contexts(turns, begins, ends, flushes)
    rows, times, amounts = [np.arange(len(turns))], [begins], [new]
    generated = np.array([turn["generated"] for turn in turns], np.float64)
    for at in flushes:
        under_way = np.flatnonzero((begins < at) & (at < ends))
        share = (at - begins[under_way]) / (ends[under_way] - begins[under_way])
        rows.append(under_way)
        times.append(np.full(len(under_way), at))
        amounts.append(context[under_way] + generated[under_way] * share)
    all_amounts = np.concatenate(amounts)
    own = np.bincount(np.concatenate(rows), all_amounts, len(turns))
    within = _sum_within(begins, ends, np.concatenate(times), all_amounts)
    read: Floats = own + (within - own) / engines
    return read


def _contexts(turns: Sequence[Record], begins: Floats, ends: Floats, flushes: Floats) -> tuple[Floats, Floats]:
    """The tokens in front of each record's generation, and those of them that no engine's cache had."""
    context, new = np.zeros(len(turns)), np.zeros(len(turns))
    at_begin, at_end = np.searchsorted(flushes, begins), np.searchsorted(flushes, ends)
    newest: dict[str, int] = {}
    for row in np.argsort(ends, kind="stable").tolist():
        turn = turns[row]
        before = newest.get(turn["sample"])
        if before is None or turns[before]["position"] >= turn["position"]:
            context[row] = new[row] = turn["prompt"]
        else:
            known = context[before] + turns[before]["generated"]
            context[row] = known + turns[before]["observation"]
            new[row] = context[row] - (known if at_end[before] == at_begin[row] else 0)
        newest[turn["sample"]] = row
    return context, new


def _sum_within(begins: Floats, ends: Floats, times: Floats, amounts: Floats) -> Floats:
    """For each [begin, end], the amounts, added up, whose times are in it."""
    order = np.argsort(times)
    total = np.concatenate([[0.0], np.cumsum(amounts[order])])
    first, last = np.searchsorted(times[order], begins), np.searchsorted(times[order], ends, side="right")
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
