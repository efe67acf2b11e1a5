"""`stream-rl turns`: percentiles of the committed turns of a run, or the longest of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from stream_rl.cli.live import load_run
from stream_rl.cli.tables import print_whole
from stream_rl.errors import ConfigError

__all__ = ["EXAMPLES", "turns"]

EXAMPLES = """Examples:

  stream-rl turns runs/demo-0 --by turn

  stream-rl turns runs/demo-0 --by environment --where "env_retries = 0" --percentiles 50,99,99.9

  stream-rl turns runs/demo-0 --longest generate_seconds --limit 5 --where "finish_reason = 'length'"
"""


def turns(  # noqa: PLR0917 - a command's options
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    by: Annotated[
        str | None, typer.Option(help="Tell apart: environment, turn, producer, finish_reason, version or attempt.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="SQL condition over the fields of the log; repeatable.")
    ] = None,
    percentiles: Annotated[str, typer.Option(help="Ranks, with commas between.")] = "50,90,95,99",
    longest: Annotated[str | None, typer.Option(help="Show the turns with the most of this, as env_seconds.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many of the longest.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
) -> None:
    """Ask the turn log of a run: count, mean, percentiles and maximum of each part of a turn (docs/turn-log.md)."""
    load_run(run)
    from stream_rl.metrics.turn_query import GROUPINGS, MEASURES, TurnQuery  # noqa: PLC0415 - imports DuckDB

    _check("--by", by, GROUPINGS)
    _check("--longest", longest, MEASURES)
    query = TurnQuery(run, where or ())
    answer = query.longest(longest, limit) if longest else query.percentiles(by, _ranks(percentiles))
    if json:
        import orjson  # noqa: PLC0415

        for row in answer.rows:
            typer.echo(orjson.dumps(dict(zip(answer.columns, row, strict=True))).decode())
        return
    if not answer.rows:
        typer.echo("no turn is left by --where")
        return
    table = Table(*answer.columns, box=None)
    for row in answer.rows:
        table.add_row(*map(_shown, row))
    print_whole(Console(), table)


def _check(option: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        raise ConfigError(f"{option} {value}: it must be one of {', '.join(known)}")


def _ranks(text: str) -> list[float]:
    try:
        ranks = [float(part) for part in text.split(",")]
    except ValueError:
        ranks = []
    if not ranks or not all(0 <= rank <= 100 for rank in ranks):
        raise ConfigError(f"--percentiles {text}: give numbers from 0 to 100, as 50,90,99.9")
    return ranks


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
