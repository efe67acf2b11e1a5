"""A server that others run (`engine.urls`): joined once it answers, and again whenever the trainer has put it out.

    answers ─► joined ─► serving ─► put out ─► does it answer?
       ▲                                          ├── no: it restarts. Counted, but not held against it
       ├──────────────────────────────────────────┘   │
       └── a pause that doubles ◄── ProcessDied ◄─────┴── yes: it refused an update, which is a death

One that does not answer for `engine.start_timeout` has died as well: so no wait is unbounded, and a run whose engines
are gone for good ends by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.engine.client import EngineClient
from stream_rl.errors import EngineError, ProcessDied

__all__ = ["ExternalEngine"]

PROBE_SECONDS = 10.0
LONGEST_PAUSE = 60.0


class ExternalEngine:
    """The keeper's side of one such server; `live` is one life of it.

    Args:
        engine_id: its name in the buffer.
        url: where it is.
        buffer: knows which engines are in, and counts what comes back.
        say: tells the person who watches.
        pause: seconds between two looks; the first refusal costs twice as much.
        start_timeout: seconds for which it may be away.
    """

    def __init__(
        self,
        engine_id: str,
        url: str,
        buffer: TrajectoryBuffer,
        say: Callable[[str], None],
        *,
        pause: float,
        start_timeout: float,
    ) -> None:
        self._engine_id = engine_id
        self._url = url
        self._buffer = buffer
        self._say = say
        self._pause = pause
        self._start_timeout = start_timeout
        self._refusals = 0
        """Since it served last."""

    async def live(self) -> None:
        """Joins it, again whenever it was away; after a refusal not at once. Ends only by its death.

        Raises:
            ProcessDied: it answers, and was put out all the same; or it does not answer for `start_timeout` seconds.
        """
        if self._refusals:
            await asyncio.sleep(min(self._pause * 2**self._refusals, LONGEST_PAUSE))
        while True:
            await self._until_it_answers()
            await self._buffer.engine_joined(self._engine_id, self._url, 0)
            self._say(f"{self._engine_id} is up at {self._url}")
            await self._until_put_out()
            if await self._answers():
                self._refusals += 1
                raise ProcessDied(
                    f"{self._url} answers, but did not take a weight update, the trainer's log has the reason"
                )
            self._say(f"{self._engine_id} does not answer at {self._url}, waiting for it to come back")
            await self._buffer.count_recovery("engine")

    async def _until_it_answers(self) -> None:
        try:
            async with asyncio.timeout(self._start_timeout):
                while not await self._answers():
                    await asyncio.sleep(self._pause)
        except TimeoutError:
            raise ProcessDied(
                f"{self._url} did not answer within engine.start_timeout={self._start_timeout:g} s"
            ) from None

    async def _until_put_out(self) -> None:
        while True:
            state = {engine.engine_id: engine.state for engine in await self._buffer.engines()}.get(self._engine_id)
            if state is None:
                return
            if state == "serving":
                self._refusals = 0
            await asyncio.sleep(self._pause)

    async def _answers(self) -> bool:
        """Whether its scheduler lives: a paused one, which a failed update leaves behind, says so as well."""
        try:
            async with EngineClient(self._url, vocab_size=1, attempts=1) as client:
                await client.server_info(timeout=PROBE_SECONDS)
        except (EngineError, KeyError, TypeError):  # another server at this address, too
            return False
        return True
