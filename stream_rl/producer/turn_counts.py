"""What turns add to the metrics: taken down at once, counted many at a time.

    a commit was acknowledged ─► a row ─► 256 of them, or somebody looks at the metrics ─► histograms and counters

To count a turn by itself costs an episode 20 us between two requests; a row costs a tenth of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple

from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector

from stream_rl.metrics import catalog
from stream_rl.metrics.labels import turn_label
from stream_rl.sample import Turn

__all__ = ["TURN_COUNTS", "TurnCounts"]

MOST = 256
"""Rows that wait, at most."""


class _Row(NamedTuple):
    """One interaction, however many records it took; `complete` ones have all of it."""

    environment: str
    turn: int
    complete: bool
    generate: float
    queue: float
    generated: int
    env_step: float
    encode: float
    observation: int


class TurnCounts(Collector):
    """Counts interactions. One of a process: as a collector it comes before those that show what it counts."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._counting = Lock()
        self._known: set[str] = set()

    def add(self, pieces: Sequence[Turn], environment: str) -> None:
        """Counts an interaction once: `pieces` are all its records, newest first."""
        turn = pieces[0]
        timings = turn.timings
        generate, queue, generated = timings.get("generate", 0.0), timings.get("queue", 0.0), len(turn.generated)
        for piece in pieces[1:]:
            generate += piece.timings.get("generate", 0.0)
            queue += piece.timings.get("queue", 0.0)
            generated += len(piece.generated)
        self._rows.append(
            _Row(environment, turn.index, turn.complete, generate, queue, generated, timings.get("env_step", 0.0),
                 timings.get("encode", 0.0), len(turn.observation))
        )  # fmt: skip
        if turn.complete and turn.index == 0:
            catalog.FIRST_ACTION_SECONDS.observe(sum(piece.active_seconds for piece in pieces), environment=environment)
        if turn.complete and turn.parse_failures:
            catalog.PARSE_FAILURES.inc(turn.parse_failures, environment=environment)
        if len(self._rows) >= MOST or environment not in self._known:
            self._known.add(environment)  # what is counted for the first time is registered, too late for a look
            self.count()

    def collect(self) -> Iterable[Metric]:
        """Shows nothing: counts what others will show."""
        self.count()
        return ()

    def count(self) -> None:
        """Counts the rows that wait."""
        with self._counting:  # the event loop adds at the end meanwhile
            rows = self._rows[:]
            del self._rows[: len(rows)]
        for environment in dict.fromkeys(row.environment for row in rows):
            _count([row for row in rows if row.environment == environment], environment)


def _count(rows: Sequence[_Row], environment: str) -> None:
    catalog.GENERATE_SECONDS.observe_all((row.generate for row in rows), environment=environment)
    catalog.QUEUE_SECONDS.observe_all((row.queue for row in rows), environment=environment)
    catalog.GENERATED_TOKENS.observe_all((row.generated for row in rows), environment=environment)
    complete = [row for row in rows if row.complete]
    catalog.ENV_SECONDS.observe_all((row.env_step for row in complete), environment=environment)
    catalog.ENCODE_SECONDS.observe_all((row.encode for row in complete), environment=environment)
    catalog.OBSERVATION_TOKENS.observe_all((row.observation for row in complete), environment=environment)
    for index, turns, generate, env_step in _by_index(complete):
        catalog.TURNS_BY_INDEX.inc(turns, environment=environment, turn_index=index)
        for part, seconds in (("generate", generate), ("env_step", env_step)):
            catalog.TURN_INDEX_SECONDS.inc(seconds, environment=environment, turn_index=index, part=part)


def _by_index(rows: Sequence[_Row]) -> Iterator[tuple[str, float, float, float]]:
    """For each turn index, as a label: turns, and their seconds of generation and of the environment."""
    found: dict[int, list[float]] = {}
    for row in rows:
        sums = found.setdefault(row.turn, [0, 0.0, 0.0])
        sums[0] += 1
        sums[1] += row.generate
        sums[2] += row.env_step
    for index, (turns, generate, env_step) in found.items():
        yield turn_label(index), turns, generate, env_step


TURN_COUNTS = TurnCounts()
REGISTRY.register(TURN_COUNTS)
