"""`stream-rl buffer check`: what durability a Redis server gives, in words."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from stream_rl.cli.durability import Finding, examine
from stream_rl.config import BufferConfig
from stream_rl.errors import BufferUnavailable, ConfigError

__all__ = ["app", "check", "line"]

EXAMPLES = """Examples:

  stream-rl buffer check redis://redis.example:6379/0

  STREAM_RL_REDIS_PASSWORD=... stream-rl buffer check rediss://trainer@redis.example:6380

  stream-rl buffer check unix:///run/redis.sock && stream-rl train run.yaml buffer.url=unix:///run/redis.sock
"""
SECONDS_TO_ANSWER = 10.0
PASSWORD_ENV = BufferConfig().password_env

app = typer.Typer(
    help="A Redis server for buffer.url: what it promises about acknowledged turns.",
    no_args_is_help=True,
    epilog=EXAMPLES,
)


@app.callback()
def _buffer() -> None:
    """Keeps `check` a command of its own."""


@app.command(epilog=EXAMPLES)
def check(
    url: Annotated[str, typer.Argument(metavar="URL", help="redis://, rediss:// or unix://, as in buffer.url.")],
    password_env: Annotated[
        str, typer.Option("--password-env", metavar="NAME", help="Environment variable that holds the password.")
    ] = PASSWORD_ENV,
) -> None:
    """Say what this server's settings promise; exit code 1 when acknowledged turns may be lost beyond that.

    Promised: nothing is lost when the server's process dies, about one second when its machine does, no key is dropped
    when it is full, and a failover loses a bounded time.
    """
    findings = examine(asyncio.run(_facts(url, os.environ.get(password_env))))
    console = Console()
    for finding in findings:
        console.print(line(finding), soft_wrap=True)
    if any(finding.fix for finding in findings):
        raise typer.Exit(1)


def line(finding: Finding) -> Text:
    """`ok` or `FIX`, what was looked at, what it means, and the fix."""
    if finding.fix is None:
        return Text.assemble(("ok   ", "green"), (finding.subject, "bold"), f": {finding.meaning}")
    return Text.assemble(
        ("FIX  ", "red"), (finding.subject, "bold"), f": {finding.meaning}; ", (finding.fix, "bold yellow")
    )  # fmt: skip


async def _facts(url: str, password: str | None) -> dict[str, str]:
    from stream_rl.buffer import TrajectoryBuffer  # noqa: PLC0415 - slow to import, and --help needs none of it

    try:
        async with await TrajectoryBuffer.connect(url, "check", password=password, timeout=SECONDS_TO_ANSWER) as buffer:
            return await buffer.server_facts()
    except BufferUnavailable as error:  # not exit code 1: that says what a server promises
        raise ConfigError(str(error)) from error
