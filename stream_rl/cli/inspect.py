"""`stream-rl inspect`: what a run's buffer holds, and any trajectory of it turn by turn."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from stream_rl.cli.live import held_buffer, load_run
from stream_rl.cli.trajectory import LEGEND, Decode, counted, sample_view
from stream_rl.config import Config
from stream_rl.errors import ConfigError

if TYPE_CHECKING:
    from stream_rl.buffer import HeldGroup, TrajectoryBuffer
    from stream_rl.sample import Int32

__all__ = ["EXAMPLES", "groups_table", "inspect"]

EXAMPLES = """Examples:

  stream-rl inspect runs/demo-0            every group held, and its samples by state

  stream-rl inspect runs/demo-0 12         group 12, all its samples turn by turn

  stream-rl inspect runs/demo-0 12-3       sample 3 of group 12

  stream-rl inspect runs/demo-0 12-3 --ids | less -R
"""
NAME = re.compile(r"(\d+)(?:-(\d+)(?:-(\d+))?)?")


def inspect(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder; the run may be live or over.")],
    what: Annotated[
        str | None, typer.Argument(metavar="GROUP|SAMPLE", help="A group, 12, or one of its samples, 12-3.")
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Show token ids instead of text: needs no tokenizer.")] = False,
) -> None:
    """Show the groups held by the buffer, or one trajectory: text, loss mask in colour, versions, timings, retries.

    Held is what is live, what a resume may need, and the dead letters. Older groups were retired: samples.jsonl and
    turns/ in the run folder keep their figures, not their tokens.
    """
    asyncio.run(_inspect(run, load_run(run), what, ids))


async def _inspect(folder: Path, config: Config, what: str | None, ids: bool) -> None:
    console = Console()
    match = NAME.fullmatch(what) if what is not None else None
    if what is not None and match is None:
        raise ConfigError(f"{what!r} is no group, like 12, and no sample, like 12-3")
    async with held_buffer(folder, config) as buffer:
        if match is None:
            groups = [group async for group in buffer.held(await buffer.held_groups())]
            console.print(groups_table(groups), counted([_state(group) for group in groups]) or "no groups", sep="")
        else:
            await _show(console, buffer, config, match, ids)


async def _show(console: Console, buffer: TrajectoryBuffer, config: Config, name: re.Match[str], ids: bool) -> None:
    number = int(name[1])
    held = await buffer.held_groups()
    group = None
    if number in held:
        async for found in buffer.held({number: held[number]}):
            group = found
    if group is None:
        raise ConfigError(f"group {number} is not held: not admitted yet, filtered, or retired after its step")
    samples = [s for s in group.samples if name[2] is None or s.sample_id.index == int(name[2])]
    if name[3] is not None:
        samples = [s for s in samples if s.sample_id.attempt == int(name[3])]
    if not samples:
        known = ", ".join(str(sample.sample_id) for sample in group.samples)
        raise ConfigError(f"group {number} has no sample {name[0]} now: it has {known}")
    decode = _ids if ids else _decoder(config)
    console.print(groups_table([group]), LEGEND, sep="")
    for sample in samples:
        console.print()
        console.print(sample_view(group, sample, await buffer.trajectory(sample), decode), soft_wrap=True)


def groups_table(groups: Iterable[HeldGroup]) -> Table:
    """One row a group."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("group", "state", "v0", "prompt", "refills", "samples", "turns", "tokens", "rewards"):
        table.add_column(column, justify="left" if column in ("state", "samples", "rewards") else "right")
    for group in groups:
        state = _state(group) if group.step is None else f"trained in step {group.step}"
        samples = group.samples
        rewards = " ".join("–" if sample.reward is None else f"{sample.reward:.3g}" for sample in samples)
        table.add_row(
            str(group.number), state, str(group.v0), str(group.prompt_index), str(group.refills),
            counted([sample.state for sample in samples]), str(sum(sample.turns for sample in samples)),
            str(sum(sample.response_length for sample in samples)), rewards,
        )  # fmt: skip
    return table


def _state(group: HeldGroup) -> str:
    return group.state.replace("_", "-")


def _decoder(config: Config) -> Decode:
    """Text with its special tokens. Raises ModelError when the run's tokenizer is gone."""
    from stream_rl.producer.chat import load_chat_encoder  # noqa: PLC0415 - imports transformers

    chat = load_chat_encoder(config.model)
    return lambda tokens: chat.decode(tokens, special=True)


def _ids(tokens: Int32) -> str:
    return " ".join(map(str, tokens.tolist()))
