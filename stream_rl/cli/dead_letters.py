"""`stream-rl dead-letters`: the groups that a run gave up, why, and another try for their prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stream_rl.cli.live import held_buffer, load_run
from stream_rl.cli.trajectory import printable
from stream_rl.errors import ConfigError

if TYPE_CHECKING:
    from stream_rl.buffer import DeadLetter, Requeued

__all__ = ["app", "list_", "requeue", "show"]

EXAMPLES = """Examples:

  stream-rl dead-letters list runs/demo-0

  stream-rl dead-letters show runs/demo-0 17

  stream-rl dead-letters requeue runs/demo-0 17

  stream-rl dead-letters requeue runs/demo-0 --all
"""
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder; the run may be live or over.")]

app = typer.Typer(
    help="The groups that a run gave up after too many failures: list them, see why, give their prompts another try.",
    no_args_is_help=True,
    epilog=EXAMPLES,
)


@app.command("list", epilog=EXAMPLES)
def list_(run: RunFolder) -> None:
    """List the groups given up: when their policy was from, which prompt, the last failure, what became of them."""
    letters, requeued = asyncio.run(_read(run))
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("group", "v0", "prompt", "reason", "detail", "finished siblings", "requeued"):
        table.add_column(column)
    for letter in letters:
        detail = printable(letter.detail.partition("\n")[0])[:60]
        row = (letter.group, letter.v0, letter.prompt_index, letter.stop_reason, detail, len(letter.finished))
        table.add_row(*(Text(str(value)) for value in row), _became(requeued.get(letter.group)))
    Console().print(table if letters else "no dead letters")


@app.command(epilog=EXAMPLES)
def show(run: RunFolder, group: Annotated[int, typer.Argument(metavar="GROUP", help="The group's number.")]) -> None:
    """Show one dead letter whole; its finished samples are shown by `stream-rl inspect RUN GROUP`."""
    letters, requeued = asyncio.run(_read(run))
    found = [letter for letter in letters if letter.group == group]
    if not found:
        raise ConfigError(f"group {group} is no dead letter of this run: `stream-rl dead-letters list` shows them")
    letter = found[0]
    typer.echo(
        f"group {letter.group}, prompt {letter.prompt_index}, admitted at version {letter.v0}\n"
        f"given up for {letter.stop_reason}: {printable(letter.detail)}\n"
        f"finished samples, kept: {', '.join(letter.finished) or 'none'}\n"
        f"requeued: {_became(requeued.get(group)) or 'no'}"
    )


@app.command(epilog=EXAMPLES)
def requeue(
    run: RunFolder,
    groups: Annotated[list[int] | None, typer.Argument(metavar="GROUP...", help="The groups' numbers.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead letter that was not requeued yet.")] = False,
) -> None:
    """Give the prompts of dead letters another try, each as a new group, before any new prompt.

    The new group is admitted when the run next admits one, so that its policy is as fresh as any other's. The old one
    stays in the list and in the count of dead letters; the run still ends after the same number of trained groups.
    """
    if bool(groups) == everything:
        raise ConfigError("name the groups to requeue, or pass --all")
    asyncio.run(_requeue(run, groups or ()))


async def _read(folder: Path) -> tuple[Sequence[DeadLetter], dict[int, Requeued]]:
    async with held_buffer(folder, load_run(folder)) as buffer:
        letters = await buffer.dead_letters()
        return letters, await buffer.requeued([letter.group for letter in letters])


async def _requeue(folder: Path, groups: Sequence[int]) -> None:
    async with held_buffer(folder, load_run(folder)) as buffer:
        if not groups:
            known = [letter.group for letter in await buffer.dead_letters()]
            done = await buffer.requeued(known)
            groups = [group for group in known if group not in done]
        for group in groups:
            answer = await buffer.requeue(group)
            typer.echo(f"group {group}: {'requeued' if answer.first else f'was requeued before, {_became(answer)}'}")
        now = await buffer.snapshot()
    if not groups:
        typer.echo("no dead letter is left to requeue")
    elif now.admitted - now.filtered - now.dead_lettered >= now.rules.total_groups:
        typer.echo("this run has admitted all its groups: they start when it is resumed with more trainer.steps")


def _became(requeued: Requeued | None) -> str:
    if requeued is None:
        return ""
    return "waits for the next admission" if requeued.group is None else f"as group {requeued.group}"
