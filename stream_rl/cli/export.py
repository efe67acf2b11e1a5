"""`stream-rl export`: every sample that the buffer holds, as JSON lines or Parquet; one group in memory at a time."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stream_rl.cli.export_files import open_writer
from stream_rl.cli.live import held_buffer, load_run
from stream_rl.config import Config
from stream_rl.errors import ConfigError
from stream_rl.metrics.turn_log import read
from stream_rl.sample import Sample

if TYPE_CHECKING:
    from stream_rl.buffer import HeldGroup, HeldSample, TrajectoryBuffer

__all__ = ["EXAMPLES", "Format", "export", "held_row", "retired_row"]

EXAMPLES = """Examples:

  stream-rl export runs/demo-0 --format jsonl

  stream-rl export runs/demo-0 --format parquet --output demo.parquet --retired
"""


class Format(enum.StrEnum):
    """The file formats."""

    JSONL = "jsonl"
    PARQUET = "parquet"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder; the run may be live or over.")],
    form: Annotated[Format, typer.Option("--format", help="One JSON object a line, or a Parquet file.")],
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to.", show_default="RUN/export.FORMAT")
    ] = None,
    retired: Annotated[
        bool, typer.Option("--retired", help="Also what samples.jsonl keeps of samples no longer held: no tokens.")
    ] = False,
) -> None:
    """Write every sample that the buffer holds: tokens, loss mask, log-probs, versions, rewards.

    Held are the samples of live groups, finished or not, those of trained groups that a resume may need, and the
    finished ones of dead letters. Older groups were retired with their tokens: --retired adds one row without arrays
    (held = false) for each attempt of theirs that ended, from samples.jsonl.
    """
    target = output or run / f"export.{form}"
    rows, held = asyncio.run(_export(run, load_run(run), form, target, retired))
    typer.echo(f"wrote {rows} rows, {held} of them with tokens, to {target}")


async def _export(folder: Path, config: Config, form: str, target: Path, retired: bool) -> tuple[int, int]:
    unfinished = target.with_name(f"{target.name}.unfinished")
    seen: set[str] = set()
    rows = 0
    try:
        async with held_buffer(folder, config) as buffer:
            with open_writer(form, unfinished) as writer, _progress() as bar:
                groups = await buffer.held_groups()
                task = bar.add_task("groups", total=len(groups))
                async for group in buffer.held(groups):
                    async for row in _rows(buffer, group):
                        writer.write(row)
                        seen.add(row["sample"])
                    bar.advance(task)
                for row in _retired(folder, seen) if retired else ():
                    writer.write(row)
                    rows += 1
        unfinished.replace(target)
    except OSError as error:
        raise ConfigError(f"--output={target} cannot be written: {error.strerror or error}") from error
    finally:
        if unfinished.exists():
            unfinished.unlink()
    return rows + len(seen), len(seen)


async def _rows(buffer: TrajectoryBuffer, group: HeldGroup) -> AsyncIterator[dict[str, Any]]:
    for held in group.samples:
        sample = await buffer.trajectory(held) if held.records else None
        if sample is not None:
            yield held_row(group, held, sample)


def _retired(folder: Path, held: Collection[str]) -> Iterator[dict[str, Any]]:
    """Ended attempts that are not held, each once: a supervisor that died may have written some again."""
    written: set[int] = set()
    for ended in read(folder / "samples.jsonl"):
        if ended["sample"] not in held and ended["number"] not in written:
            written.add(ended["number"])
            yield retired_row(ended)


def held_row(group: HeldGroup, held: HeldSample, sample: Sample) -> dict[str, Any]:
    """A sample as one flat row; its arrays are numpy's: int32 tokens, uint8 loss_mask, float32 rollout_log_probs."""
    return {
        "held": True, "sample": str(held.sample_id), "group": group.number, "index": held.sample_id.index,
        "attempt": held.sample_id.attempt, "group_state": group.state, "step": group.step, "v0": group.v0,
        "prompt_index": group.prompt_index, "state": held.state, "status": sample.status.value,
        "stop_reason": None if sample.stop_reason is None else sample.stop_reason.value, "reward": sample.reward,
        "turn_rewards": [turn.reward for turn in sample.turns if turn.complete], "turns": held.turns,
        "response_length": sample.response_length, "generated": held.generated, "prompt": sample.prompt,
        "label": sample.label, "metadata": dict(sample.metadata), "temperature": sample.temperature,
        "sampling_seed": sample.sampling_seed, "prompt_length": len(sample.prompt_tokens), "tokens": sample.tokens,
        "loss_mask": sample.loss_mask, "rollout_log_probs": sample.rollout_log_probs,
        "weight_versions": [
            {"start": span.start, "end": span.end, "version": str(span.version)} for span in sample.weight_versions
        ],
    }  # fmt: skip


def retired_row(ended: Mapping[str, Any]) -> dict[str, Any]:
    """A line of samples.jsonl in the same form: what it does not know is left out."""
    names = ("sample", "group", "index", "attempt", "v0", "status", "stop_reason", "reward", "turns",
             "response_length", "generated")  # fmt: skip
    return {"held": False, "state": ended["kind"], **{name: ended[name] for name in names}}


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"), BarColumn(40), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
