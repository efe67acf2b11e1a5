"""Reads the logs of a run folder, with their rules: which lines count when a step or a commit was written twice."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson

from stream_rl.config import Config
from stream_rl.errors import DataError
from stream_rl.metrics.turn_log import read

__all__ = [
    "STEP_PARTS",
    "TRAIN_PARTS",
    "TURN_PARTS",
    "LoggedTurn",
    "Record",
    "RunRecords",
    "ended_samples",
    "read_summary",
    "step_seconds",
    "surviving",
    "surviving_steps",
    "turn_records",
    "versions_of",
]

Logged = TypeVar("Logged")
Record = Mapping[str, Any]
STEP_PARTS = ("wait", "load", "train", "publish", "checkpoint")
"""What a step is made of; its record has `wait_seconds` and so on."""
TRAIN_PARTS = ("pack", "forward_backward", "optimizer")
"""What its training is made of, in the same way."""
TURN_PARTS = ("generate_seconds", "queue_seconds", "env_seconds", "encode_seconds", "commit_seconds")


class LoggedTurn(NamedTuple):
    """What a trajectory's picture needs of one record: the turn, its generated tokens, the versions that wrote them."""

    turn: int
    generated: int
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunRecords:
    """Everything a run folder holds, each fact once.

    trajectories  sample id -> its records in order; a restarted sample's earlier ones are replaced
    turn_seconds  part of a turn, as named in the turn log -> seconds, one entry for each turn of the trajectories
    turn_places   the turn's place in its episode, of the same turns
    evaluations   of versions, on held-out prompts, in the order that they ended
    changes       the audit list of settings that were changed after the run's first start
    """

    config: Config
    summary: Record
    steps: Sequence[Record]
    samples: Sequence[Record]
    trajectories: Mapping[str, Sequence[LoggedTurn]] = field(default_factory=dict)
    turn_seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    turn_places: Sequence[int] = ()
    changes: Sequence[Record] = ()
    evaluations: Sequence[Record] = ()

    def column(self, name: str) -> list[Any]:
        """One figure of every step."""
        return [step[name] for step in self.steps]

    @property
    def step_of(self) -> Mapping[int, int]:
        """Group -> the step that trained it."""
        return {group: step["step"] for step in self.steps for group in step["groups"]}

    @classmethod
    def load(cls, folder: str | Path) -> RunRecords:
        """Reads a run folder.

        Raises:
            ConfigError: the folder holds no readable config.yaml.
            DataError: a log holds a line that is not JSON, or the summary is none.
        """
        folder = Path(folder)
        config = Config.load(folder / "config.yaml")
        trajectories, places, seconds = _trajectories(folder)
        return cls(
            config=config,
            summary=read_summary(folder),
            steps=surviving_steps(folder / "steps.jsonl"),
            samples=ended_samples(folder),
            trajectories=trajectories,
            turn_seconds=seconds,
            turn_places=places,
            changes=list(read(folder / "changes.jsonl")),
            evaluations=list(read(folder / "evaluations.jsonl")),
        )


def _trajectories(folder: Path) -> tuple[dict[str, list[LoggedTurn]], array[int], dict[str, array[float]]]:
    """What the turn logs hold that no restart replaced; places and seconds of its turns, sums of their records."""
    logged: dict[str, list[tuple[float, int, tuple[LoggedTurn, int]]]] = defaultdict(list)
    of_records = {part: array("d") for part in TURN_PARTS}
    for row, record in enumerate(turn_records(folder)):
        turn = LoggedTurn(record["turn"], record["generated"], tuple(record["versions"]))
        logged[record["sample"]].append((record["time"], record["position"], (turn, row)))
        for part, values in of_records.items():
            values.append(record[part])
    trajectories: dict[str, list[LoggedTurn]] = {}
    places, seconds = array("q"), {part: array("d") for part in TURN_PARTS}
    for sample, records in logged.items():
        kept = surviving(records)
        trajectories[sample] = [turn for turn, _ in kept]
        for place, of_turn in groupby(kept, key=lambda pair: pair[0].turn):
            rows = [row for _, row in of_turn]
            places.append(place)
            for part, values in seconds.items():
                values.append(sum(of_records[part][row] for row in rows))
    return trajectories, places, seconds


def versions_of(turns: Iterable[LoggedTurn]) -> set[str]:
    """The weight versions that wrote a trajectory."""
    return {version for turn in turns for version in turn.versions}


def surviving(logged: Iterable[tuple[float, int, Logged]]) -> list[Logged]:
    """What counts of one sample's (time, position, record): a later record replaces all at its position and after it.

    Such a sample was restarted.
    """
    return _newest((position, record) for _, position, record in sorted(logged, key=itemgetter(0, 1)))


def step_seconds(step: Record) -> float:
    """All seconds of a step."""
    return float(sum(step[f"{part}_seconds"] for part in STEP_PARTS))


def read_summary(folder: Path) -> dict[str, Any]:
    """summary.json, empty when the run has not written one. Raises DataError."""
    path = folder / "summary.json"
    if not path.exists():
        return {}
    try:
        summary: dict[str, Any] = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON, remove it: {error}") from error
    return summary


def surviving_steps(log: Path) -> list[dict[str, Any]]:
    """What counts of a log of steps, in their order: a step that is written again replaces itself and all after it.

    Those are replayed, or belong to a history that was lost, which may have been longer.
    """
    return _newest((record["step"], record) for record in read(log))


def _newest(logged: Iterable[tuple[int, Logged]]) -> list[Logged]:
    """Of (place, record) in the order of writing: a record replaces all at its place and after it."""
    kept: list[tuple[int, Logged]] = []
    for place, record in logged:
        while kept and kept[-1][0] >= place:
            kept.pop()
        kept.append((place, record))
    return [record for _, record in kept]


def ended_samples(folder: Path) -> list[dict[str, Any]]:
    """The lines of samples.jsonl, each number once: a supervisor that died may have written some again."""
    return list({record["number"]: record for record in read(folder / "samples.jsonl")}.values())


def turn_records(folder: Path) -> Iterator[dict[str, Any]]:
    """Every line of every producer's turn log."""
    for path in sorted((folder / "turns").glob("*.jsonl")):
        yield from read(path)
