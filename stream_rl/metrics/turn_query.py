"""Questions to the turn log of a run, by DuckDB over its JSON lines: nothing is loaded before it is asked for.

    records ─► what no restart replaced ─► turns: the sums of their records ─► where, by

The rules are those of docs/turn-log.md, and the same that the report keeps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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

FIELDS = (*TURN_FIELDS, "producer", "version")
"""What conditions may name."""

_RECORDS = """create view records as
select *, regexp_extract(filename, '([^/]+?)(\\.[0-9]+)?\\.jsonl$', 1) as producer, versions[-1] as version
from log where sample is not null
qualify coalesce(position < min(position) over (
    partition by sample order by time, position rows between 1 following and unbounded following), true)"""
_ADDED = (*TURN_PARTS, "generated", "observation", "env_retries", "reward")
_NAMES: Mapping[str, str] = {name: f'"{name}"' for name in FIELDS}
_OF_A_TURN: Mapping[str, str] = {
    **{name: f"arg_max({_NAMES[name]}, position)" for name in FIELDS},
    **{name: f"sum({_NAMES[name]})::{TURN_FIELDS[name][0]}" for name in _ADDED},
    "position": "max(position)",
    "versions": "flatten(list(versions order by position))",
}
"""How each field of a turn follows from its records: added up, or the last one's."""
_TURNS = f"""create view turns as
select {", ".join(f"{how} as {_NAMES[name]}" for name, how in _OF_A_TURN.items())}
from records group by records.sample, records.turn"""


@dataclass(frozen=True, slots=True)
class Answer:
    """A table: names of its columns, and its rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


class TurnQuery:
    """The committed turns of one run.

    Args:
        folder: the run's.
        where: conditions in SQL over the fields of the log, `producer` (of the turn's end) and `version` (its newest),
            joined by `and`.

    Raises:
        ConfigError: the run has no turn log, or a condition is empty.
    """

    def __init__(self, folder: Path, where: Sequence[str] = ()) -> None:
        if any(not condition.strip() for condition in where):
            raise ConfigError("--where '' is empty: leave it away, or give a condition, as \"turn = 0\"")
        files = sorted(str(path) for path in (folder / "turns").glob("*.jsonl"))
        if not any(Path(file).stat().st_size for file in files):
            raise ConfigError(f"{folder} has no turn log: nothing was committed yet, or metrics.turn_log is false")
        self._connection = duckdb.connect()
        columns: Any = {name: kind for name, (kind, _) in TURN_FIELDS.items()}
        # A live log may end within a line that is being written.
        self._connection.read_json(
            files, format="newline_delimited", columns=columns, filename=True, ignore_errors=True
        ).create_view("log")
        self._connection.execute(_RECORDS)
        self._connection.execute(_TURNS)
        self._where = " and ".join(f"({condition})" for condition in where) or "true"

    def percentiles(self, by: str | None, ranks: Sequence[float], measures: Sequence[str] = MEASURES) -> Answer:
        """For each value of `by` (or all turns together) and each measure: count, mean, percentiles, maximum.

        Args:
            by: one of GROUPINGS.
            ranks: between 0 and 100.
        """
        group = _NAMES[by] if by else "'all turns'"
        shares = ", ".join(f"quantile_cont({{0}}, {rank / 100})" for rank in ranks)
        parts = [
            f"select by_value, '{measure}' as measure, {number} as place, count(*), avg({measure}), "
            f"{shares.format(measure)}, max({measure}) from chosen group by by_value"
            for number, measure in enumerate(measures)
        ]
        rows = self._ask(
            f"with chosen as materialized (select {group} as by_value, {', '.join(measures)} from turns "
            f"where {self._where}) "
            f"select * exclude (place) from ({' union all '.join(parts)}) order by place"
        )
        rows.sort(key=lambda row: _in_order(row[0]))
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
            raise ConfigError(f"--where cannot be asked: {line}; fields: {', '.join(FIELDS)}") from error


def _in_order(value: Any) -> list[tuple[bool, int, str]]:
    """Names by the numbers in them: producer-2 before producer-10, version 9 before 10."""
    parts = re.split(r"(\d+)", "" if value is None else str(value))
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
