"""Questions to the turn log of a run, by DuckDB over its JSON lines: nothing is loaded before it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from stream_rl.errors import ConfigError
from stream_rl.metrics.run_folder import TURN_PARTS
from stream_rl.metrics.turn_schema import TURN_FIELDS

__all__ = ["GROUPINGS", "MEASURES", "Answer", "TurnQuery"]

MEASURES = (*TURN_PARTS, "generated", "observation")
GROUPINGS = ("environment", "turn", "producer", "finish_reason", "version", "attempt")


@dataclass(frozen=True, slots=True)
class Answer:
    """A table: names of its columns, and its rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


class TurnQuery:
    """The committed turns of one run.

    Args:
        folder: the run's.
        where: conditions in SQL over the fields of the log, `producer` and `version` (the newest of the record), joined
            by `and`.

    Raises:
        ConfigError: the run has no turn log.
    """

    def __init__(self, folder: Path, where: Sequence[str] = ()) -> None:
        files = sorted(str(path) for path in (folder / "turns").glob("*.jsonl"))
        if not any(Path(file).stat().st_size for file in files):
            raise ConfigError(f"{folder} has no turn log: nothing was committed yet, or metrics.turn_log is false")
        self._connection = duckdb.connect()
        columns: Any = {name: kind for name, (kind, _) in TURN_FIELDS.items()}
        # A live log may end within a line that is being written.
        self._connection.read_json(
            files, format="newline_delimited", columns=columns, filename=True, ignore_errors=True
        ).create_view("log")
        self._connection.execute(
            "create view turns as select *, regexp_extract(filename, '([^/]+?)(\\.[0-9]+)?\\.jsonl$', 1) as producer, "
            "versions[-1] as version from log where sample is not null"
        )
        self._where = " and ".join(f"({condition})" for condition in where) or "true"

    def percentiles(self, by: str | None, ranks: Sequence[float], measures: Sequence[str] = MEASURES) -> Answer:
        """For each value of `by` (or all turns together) and each measure: count, mean, percentiles, maximum.

        Args:
            by: one of GROUPINGS.
            ranks: between 0 and 100.
        """
        group = by or "'all turns'"
        shares = ", ".join(f"quantile_cont({{0}}, {rank / 100})" for rank in ranks)
        parts = [
            f"select {group} as by_value, '{measure}' as measure, {number} as place, count(*), avg({measure}), "
            f"{shares.format(measure)}, max({measure}) from turns where {self._where} group by by_value"
            for number, measure in enumerate(measures)
        ]
        rows = self._ask(f"select * exclude (place) from ({' union all '.join(parts)}) order by by_value, place")
        names = [f"p{rank:g}" for rank in ranks]
        return Answer([by or "turns", "measure", "count", "mean", *names, "max"], rows)

    def longest(self, measure: str, limit: int) -> Answer:
        """The `limit` turns with the most of a measure."""
        shown = ("sample", "turn", "producer", "environment", "version", "finish_reason", *MEASURES)
        rows = self._ask(
            f"select {', '.join(shown)} from turns where {self._where} order by {measure} desc limit {int(limit)}"
        )
        return Answer(shown, rows)

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query).fetchall()
        except duckdb.Error as error:
            line = str(error).partition("\n")[0]
            raise ConfigError(f"--where cannot be asked: {line}; fields: {', '.join(TURN_FIELDS)}") from error
