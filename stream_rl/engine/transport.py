"""One server's HTTP, with its faults sorted: what the request got wrong, what may be tried again, what is over.

4xx                                    EngineRejected, at once
connection fault, 5xx, cut answer      tried again with growing pauses, if the call may be repeated; counted
attempts spent, or the deadline over   EngineUnavailable
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import orjson

from stream_rl.errors import EngineRejected, EngineUnavailable
from stream_rl.metrics import catalog

__all__ = ["Transport", "pause_before"]

Body = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None

CONNECT_SECONDS = 5.0
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
# Below uvicorn's own 5 s, so that a connection is never reused while the server closes it.
KEEPALIVE_SECONDS = 4.0


class _Fault(Exception):
    """An attempt failed in a way that another attempt may not."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class Transport:
    """Requests to one server, as many at once as are asked for.

    Args:
        url: the server's address, without a path.
        attempts: how often a call that may be repeated is made.
    """

    def __init__(self, url: str, *, attempts: int = 6) -> None:
        self.url = url.rstrip("/")
        self._attempts = attempts
        self._opened: aiohttp.ClientSession | None = None

    async def call(self, method: str, path: str, body: Body = None, *, timeout: float, repeat: bool = True) -> Any:
        """One call: the decoded JSON of a 2xx answer, or None where the answer is not JSON.

        Args:
            body: becomes JSON, numpy arrays too; a function gives each attempt its own.
            timeout: seconds for everything, repetitions included.
            repeat: whether a call that may have arrived may be made again.

        Raises:
            EngineRejected: 4xx, with the server's message.
            EngineUnavailable: no answer; the message has the address and the last fault.
        """
        attempts = self._attempts if repeat else 1
        try:
            async with asyncio.timeout(timeout):
                for attempt in itertools.count(1):
                    try:
                        return await self._once(method, path, body)
                    except _Fault as fault:
                        if attempt == attempts:
                            raise EngineUnavailable(f"engine {self.url}{path}: {fault}") from fault
                        catalog.ENGINE_REQUEST_RETRIES.inc(cause=fault.cause)
                    await asyncio.sleep(pause_before(attempt + 1) * random.uniform(1.0, 2.0))
        except TimeoutError as error:
            raise EngineUnavailable(f"engine {self.url}{path}: no answer in {timeout:g} s") from error

    async def close(self) -> None:
        """Closes the connections; calls under way fail."""
        if self._opened is not None:
            await self._opened.close()

    async def _once(self, method: str, path: str, body: Body) -> Any:
        given = body() if callable(body) else body
        data = None if given is None else orjson.dumps(given, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = {"Content-Type": "application/json"} if data else None
        try:
            async with self._session().request(method, self.url + path, data=data, headers=headers) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _Fault("connection", f"{type(error).__name__} {error}") from error
        if answer.status >= 500:
            raise _Fault("server", f"{answer.status} {_message(content)}")
        if answer.status >= 400:
            raise EngineRejected(f"engine {self.url}{path}: {answer.status} {_message(content)}")
        try:
            return orjson.loads(content) if answer.content_type == "application/json" else None
        except orjson.JSONDecodeError as error:
            raise _Fault("answer", f"the answer is not JSON: {error}") from error

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            # Deadlines are the caller's; only the time to connect is bounded here.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
            self._opened = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self._opened


def pause_before(attempt: int) -> float:
    """Seconds, doubling from 50 ms up to 1 s; up to as much again is added, so that clients do not come in step."""
    return float(min(FIRST_PAUSE * 2 ** (attempt - 2), LONGEST_PAUSE))


def _message(content: bytes) -> str:
    """SGLang's error text out of the several shapes it has."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content[:500].decode(errors="replace")
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
