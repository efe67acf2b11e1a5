"""What became of every acknowledged turn, and of every group trained.

The producers' own turn logs are the record of acknowledgements: a line is written when a commit has returned, to a file
that Redis knows nothing of. The trainer's log is the record of what was trained. A turn is lost when no trained sample
reaches as far as its position, or when its position was acknowledged again before the sample was read: then the first
one was gone. A step that is written again replaces itself and all after it: what a restarted trainer replays is not
trained twice, and a history that Redis and the trainer lost together, which may have been longer, is gone.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_rl.buffer import RunSnapshot
from stream_rl.metrics import turn_log
from stream_rl.metrics.run_folder import surviving_steps

LOG_SECONDS = 0.05
"""An answer that came just before a death is written into the log just after it."""


@dataclass(frozen=True, slots=True)
class Account:
    """The figures of one run.

    oldest_lost    seconds before the next death at which the oldest lost turn was acknowledged; 0 when none was lost
    twice          groups that two steps of the surviving history trained
    changed        steps that a replay gave other groups
    given_up       attempts that failed or began again, which none should here
    again          turns played after the trainer had read their sample, of which Redis had lost some: for a replay
    cut            seconds of its newest writes that a power cut took from Redis, at most; 0 when there was none
    """

    deaths: int
    committed: int
    lost: int
    oldest_lost: float
    steps: int
    replayed: int
    twice: int
    changed: int
    given_up: int
    cut: float
    again: int


def account(
    logs: Sequence[Path], trained: Path, deaths: Sequence[float], given_up: set[str], ended: RunSnapshot, *, cut: float
) -> Account:
    """Compares the turn logs with what was trained. Raises AssertionError when not every group of the run was."""
    history: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in turn_log.read(trained):
        history[line["step"]].append(line)
    surviving = surviving_steps(trained)
    assert [line["step"] for line in surviving] == list(range(1, len(surviving) + 1)), "a step is missing"
    groups = Counter(group for line in surviving for group in line["groups"])
    assert len(groups) >= ended.admitted - ended.dead_lettered - ended.filtered, "a group was never trained"
    read = {sample: (count, line["time"]) for line in surviving for sample, count in line["records"].items()}
    given_up = given_up - read.keys()

    acknowledged: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for log in logs:
        for line in turn_log.read(log):
            if line["sample"] not in given_up:
                acknowledged[line["sample"], line["position"]].append(line["time"])
    lost: list[float] = []
    again = 0
    for (sample, position), times in acknowledged.items():
        count, when = read.get(sample, (0, float("inf")))
        before = sorted(at for at in times if at <= when + LOG_SECONDS)
        lost += before[: len(before) - (position < count)]
        again += len(times) - len(before)
    return Account(
        deaths=len(deaths),
        committed=sum(map(len, acknowledged.values())),
        lost=len(lost),
        oldest_lost=max((_before(deaths, at) for at in lost), default=0.0),
        steps=len(surviving),
        replayed=sum(line["replayed"] for lines in history.values() for line in lines),
        twice=sum(count > 1 for count in groups.values()),
        changed=sum(_changed(lines) for lines in history.values()),
        given_up=len(given_up),
        cut=cut,
        again=again,
    )


def _changed(lines: Sequence[dict[str, Any]]) -> bool:
    """Whether a replay had other groups. A step that Redis lost together with its trainer is no replay: it is new."""
    return any(line["replayed"] and line["groups"] != before["groups"] for before, line in itertools.pairwise(lines))


def _before(deaths: Sequence[float], at: float) -> float:
    """Seconds from an acknowledgement to the death that took it."""
    place = bisect.bisect_left(deaths, at - LOG_SECONDS)
    return max(deaths[place] - at, 0.0) if place < len(deaths) else float("inf")
