"""One Redis and one run: calls that wait out a restart, and errors with names.

A call whose connection breaks is sent again, with growing pauses, until `timeout`; one that Redis has no room for,
until `room_timeout`. It may therefore run twice; every script is written so that the second time changes nothing and
answers the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import redis.exceptions as faults
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from stream_rl.buffer import keys
from stream_rl.buffer.allocation import keep_large_blocks
from stream_rl.buffer.scripts import SCRIPTS
from stream_rl.buffer.wire import Command, Pieces, Wire
from stream_rl.errors import BufferFull, BufferUnavailable, ConfigError

__all__ = ["STAGED_SECONDS", "Connection", "masked", "nonce"]

T = TypeVar("T")

CONNECTIONS = 16
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
STAGED_SECONDS = 3600
"""How long bytes that were written before the commit that names them stay without it."""

_REFUSED = (faults.AuthenticationError, faults.AuthenticationWrongNumberOfArgsError)
# What Valkey and Redis 7 say of a command inside a script that the user may not call.
_DENIED = ("ACL failure", "user executing the script can't run this command")
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

    def __init__(
        self, url: str, run: str, *, password: str | None, timeout: float, room_timeout: float, zstd: bool
    ) -> None:
        self.url = masked(url)
        self.prefix = keys.prefix(run)
        self.timeout = timeout
        self.room_timeout = room_timeout
        self.zstd = zstd
        try:
            pool = BlockingConnectionPool.from_url(
                url, max_connections=CONNECTIONS, timeout=timeout, decode_responses=False, protocol=2,
                socket_timeout=timeout, socket_connect_timeout=min(timeout, 10.0), retry=Retry(NoBackoff(), 0),
                **({"password": password} if password else {}),
            )  # fmt: skip
        except ValueError as error:
            raise ConfigError(f"setting buffer.url={self.url!r}: {error}") from error
        self._client = Redis.from_pool(pool)
        # Two sockets: what is small and waited for never stands behind megabytes.
        self._wire, self._bulk = Wire(pool.make_connection, timeout), Wire(pool.make_connection, timeout)
        keep_large_blocks()

    async def check(self) -> None:
        """Finds out whether a Redis answers. Raises BufferUnavailable, and ConfigError when it is none."""
        try:
            await self.pipeline(lambda pipe: pipe.ping())
        except faults.RedisError as error:  # neither passing nor named: another protocol, no such database
            raise ConfigError(f"setting buffer.url={self.url!r}: {error}") from error

    async def script(
        self, name: str, *arguments: str | int | float | bytes, beside: Mapping[str, Pieces] | None = None,
        waits_for_room: bool = True,
    ) -> Any:  # fmt: skip
        """Runs `lua/<name>.lua` on the run's keys. Raises BufferUnavailable, BufferFull.

        `beside` are keys to write just before, in the same round trip: bytes too large to go through Lua. A key that is
        there is left alone, with its life: names tell contents apart.
        """
        script = SCRIPTS[name]
        staged = [("SET", key, data, "NX", "EX", STAGED_SECONDS) for key, data in (beside or {}).items()]
        commands: list[Command] = [*staged, ("EVALSHA", script.sha, 1, self.prefix, *arguments)]
        wire = self._bulk if staged else self._wire

        async def once() -> Any:
            try:
                return _checked(await wire.call(commands))[-1]
            except faults.NoScriptError:
                await wire.call([("SCRIPT", "LOAD", script.source)])
                return _checked(await wire.call(commands))[-1]

        return await self._answered(once, room_timeout=self.room_timeout if waits_for_room else 0.0)

    async def store(self, values: Mapping[str, Pieces]) -> None:
        """Writes keys that something will name later, or let expire; one that is there is left alone.

        Raises BufferUnavailable, BufferFull.
        """
        commands = [("SET", key, data, "NX", "EX", STAGED_SECONDS) for key, data in values.items()]

        async def once() -> None:
            _checked(await self._bulk.call(commands))

        await self._answered(once, room_timeout=self.room_timeout)

    async def read(self, commands: Sequence[Command], *, plain: bool = False) -> list[Any]:
        """The answers to commands that only read, in one round trip on the socket for large answers.

        `plain`: each answer is one string; a large one comes as a memoryview.
        """

        async def once() -> list[Any]:
            return _checked(await self._bulk.call(commands, plain=plain))

        return await self._answered(once) if commands else []

    async def pipeline(self, fill: Callable[[Pipeline], object], *, atomic: bool = False) -> list[Any]:
        """Sends what `fill` puts into a pipeline in one round trip. Only for calls that may be repeated."""

        async def once() -> list[Any]:
            async with self._client.pipeline(transaction=atomic) as pipe:
                fill(pipe)
                return list(await pipe.execute())

        return await self.until_answered(once, room_timeout=self.room_timeout)

    async def hashes(self, family: str, members: Sequence[str]) -> list[dict[bytes, bytes]]:
        """The hashes of a family's members in one round trip, empty where there is none."""
        flat = await self.read([("HGETALL", self.key(family, member)) for member in members])
        return [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in flat]

    async def fields(self, family: str, members: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
        """Some fields of the hashes of a family's members in one round trip, None where there is none."""
        found = await self.read([("HMGET", self.key(family, member), *names) for member in members])
        return [dict(zip(names, values, strict=True)) for values in found]

    async def _answered(self, call: Callable[[], Awaitable[T]], *, room_timeout: float = 0.0) -> T:
        """Awaits `call()`; whatever goes wrong with it is waited out or named by calling again."""
        began = asyncio.get_running_loop().time()
        try:
            return await call()  # no timer of its own: the wire fails a call that has no answer in time
        except (faults.RedisError, OSError):
            return await self.until_answered(call, room_timeout=room_timeout, began=began)

    async def until_answered(
        self, call: Callable[[], Awaitable[T]], *, room_timeout: float = 0.0, began: float | None = None
    ) -> T:
        """Awaits `call()`, again after each passing fault until `timeout`, and while there is no room for it.

        Both limits count from `began`, else from now.
        """
        clock = asyncio.get_running_loop().time
        began = clock() if began is None else began
        deadline, room_deadline = began + self.timeout, began + room_timeout
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
                if isinstance(named, BufferFull) and clock() + pause < room_deadline:
                    deadline = clock() + pause + self.timeout
                elif named is not None:
                    raise named from error
                elif not isinstance(error, _PASSING):
                    raise
                elif clock() + pause >= deadline:
                    raise self._unavailable(error) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def key(self, name: str, member: str | int = "") -> str:
        """A key of this run by its name in keys.py, with the member for a family."""
        assert name in (keys.FAMILIES if member != "" else keys.SINGLE), name
        return f"{self.prefix}{name}:{member}" if member != "" else f"{self.prefix}{name}"

    async def close(self) -> None:
        """Closes the connections; the run goes on."""
        self._wire.close()
        self._bulk.close()
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
        if isinstance(error, faults.NoPermissionError) or any(words in str(error) for words in _DENIED):
            return BufferUnavailable(
                f"{where} does not let this user do what the buffer needs: {error}. Grant it with "
                "`ACL SETUSER <name> ~stream_rl:* +@all -@dangerous +info`"
            )
        if isinstance(error, faults.OutOfMemoryError):
            return BufferFull(
                f"{where} is full ({error}) and had no room within buffer.room_timeout={self.room_timeout:g} s: raise "
                "its maxmemory, or keep less in it by trainer.checkpoint_every, trainer.checkpoints_kept or "
                "buffer.max_journal_mib"
            )
        if str(error).startswith("MISCONF"):
            return BufferFull(f"{where} cannot write its files: {error}")
        return None


def _checked(replies: list[Any]) -> list[Any]:
    """Raises the first error among the answers."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def nonce() -> str:
    """A token that no other call has."""
    return os.urandom(12).hex()
