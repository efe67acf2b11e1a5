"""One Redis and one run: calls that wait out a restart, and errors with names.

A call whose connection breaks is sent again, with growing pauses, until `timeout`. It may therefore run twice; every
script is written so that the second time changes nothing and answers the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import redis.exceptions as faults
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from stream_rl.buffer import keys
from stream_rl.buffer.scripts import SCRIPTS
from stream_rl.errors import BufferFull, BufferUnavailable, ConfigError

T = TypeVar("T")

CONNECTIONS = 16
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0

_REFUSED = (faults.AuthenticationError, faults.AuthenticationWrongNumberOfArgsError, faults.NoPermissionError)
# A replica being promoted answers READONLY or MASTERDOWN for a while: waited out like a broken connection.
_PASSING = (faults.ConnectionError, faults.TimeoutError, faults.ReadOnlyError, faults.MasterDownError, OSError)


def masked(url: str) -> str:
    """The URL with its password hidden, for messages and logs."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))


class Connection:
    """Runs the scripts of one run. Use it from one event loop."""

    def __init__(self, url: str, run: str, *, password: str | None, timeout: float) -> None:
        self.url = masked(url)
        self.prefix = keys.prefix(run)
        self.timeout = timeout
        try:
            pool = BlockingConnectionPool.from_url(
                url, max_connections=CONNECTIONS, timeout=timeout, decode_responses=False, protocol=2,
                socket_timeout=timeout, socket_connect_timeout=min(timeout, 10.0), retry=Retry(NoBackoff(), 0),
                **({"password": password} if password else {}),
            )  # fmt: skip
        except ValueError as error:
            raise ConfigError(f"setting buffer.url={self.url!r}: {error}") from error
        self._client = Redis.from_pool(pool)

    async def check(self) -> None:
        """Finds out whether a Redis answers. Raises BufferUnavailable, and ConfigError when it is none."""
        try:
            await self.pipeline(lambda pipe: pipe.ping())
        except faults.RedisError as error:  # neither passing nor named: another protocol, no such database
            raise ConfigError(f"setting buffer.url={self.url!r}: {error}") from error

    async def script(self, name: str, *arguments: str | int | float | bytes) -> Any:
        """Runs `lua/<name>.lua` on the run's keys. Raises BufferUnavailable, BufferFull."""
        script = SCRIPTS[name]

        async def once() -> Any:
            try:
                return await self._client.evalsha(script.sha, 1, self.prefix, *arguments)
            except faults.NoScriptError:
                await self._client.script_load(script.source)
                return await self._client.evalsha(script.sha, 1, self.prefix, *arguments)

        return await self.until_answered(once)

    async def pipeline(self, fill: Callable[[Pipeline], object], *, atomic: bool = False) -> list[Any]:
        """Sends what `fill` puts into a pipeline in one round trip. Only for calls that may be repeated."""

        async def once() -> list[Any]:
            async with self._client.pipeline(transaction=atomic) as pipe:
                fill(pipe)
                return list(await pipe.execute())

        return await self.until_answered(once)

    async def until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Awaits `call()`, again after each passing fault, until `timeout`."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.timeout
        pause = FIRST_PAUSE
        task = asyncio.current_task()
        assert task is not None
        cancelled = task.cancelling()
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    answer = await call()
                    # Python 3.11's wait_for, which the client uses, drops a cancellation that comes with the answer.
                    if task.cancelling() > cancelled:
                        raise asyncio.CancelledError
                    return answer
            except (faults.RedisError, OSError) as error:
                named = self._named(error)
                if named is not None:
                    raise named from error
                if not isinstance(error, _PASSING):
                    raise
                if clock() + pause >= deadline:
                    raise self._unavailable(error) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def key(self, name: str, member: str | int = "") -> str:
        """A key of this run by its name in keys.py, with the member for a family."""
        assert name in (keys.FAMILIES if member != "" else keys.SINGLE), name
        return f"{self.prefix}{name}:{member}" if member != "" else f"{self.prefix}{name}"

    async def close(self) -> None:
        """Closes the connections; the run goes on."""
        await self._client.aclose(close_connection_pool=True)

    def _unavailable(self, error: BaseException) -> BufferUnavailable:
        why = str(error) or type(error).__name__
        return BufferUnavailable(
            f"Redis at {self.url} (setting buffer.url) did not answer within {self.timeout:g} s: {why}"
        )

    def _named(self, error: Exception) -> BufferUnavailable | BufferFull | None:
        """What an error means to whoever runs this, where it is not one that passes by itself."""
        where = f"Redis at {self.url} (setting buffer.url)"
        # The client wraps a refused login into a ConnectionError, as if trying again could help.
        if isinstance(error, _REFUSED) or isinstance(error.__cause__, _REFUSED):
            return BufferUnavailable(
                f"{where} refused the login: {error} Put the password into the environment variable that setting "
                "buffer.password_env names"
            )
        if isinstance(error, faults.OutOfMemoryError):
            return BufferFull(f"{where} is full: {error}")
        if str(error).startswith("MISCONF"):
            return BufferFull(f"{where} cannot write its files: {error}")
        return None


def nonce() -> str:
    """A token that no other call has."""
    return os.urandom(12).hex()
