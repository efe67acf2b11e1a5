"""Reads complete groups beside a step's training, in a thread with a connection of its own.

Which groups a step trains is chosen when it pulls them, not here: what is read ahead are the groups that it would take
now, and a load takes of them what the buffer still has as it was. So that every rank reads its own shard only, several
ranks read ahead once a whole step's groups are complete, and share them out as the load will. Images are left to the
load.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from stream_rl.buffer import FinishedSample, TrajectoryBuffer
from stream_rl.consumer.batching import shard
from stream_rl.errors import StreamRLError

__all__ = ["Prefetch"]

logger = logging.getLogger(__name__)

READ_SECONDS = 30.0
"""What is not read by then is left to the load."""


class Prefetch:
    """One rank's reader.

    Args:
        connect: makes the reader's connection to the buffer.
        groups: a step's groups, the most that are read ahead.
        mini_batches: of a step.
        rank, ranks: which shard is read.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[TrajectoryBuffer]], *, groups: int, mini_batches: int, rank: int,
        ranks: int,
    ) -> None:  # fmt: skip
        self._connect = connect
        self._groups = groups
        self._mini_batches = mini_batches
        self._rank, self._ranks = rank, ranks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._runner = asyncio.Runner()
        self._buffer: TrajectoryBuffer | None = None
        self._reading: Future[Mapping[str, FinishedSample]] | None = None

    def begin(self) -> None:
        """Starts to read; returns at once."""
        self._reading = self._thread.submit(lambda: self._runner.run(self._read()))

    def collect(self) -> Mapping[str, FinishedSample]:
        """What was read since `begin`, by the samples' names; waits for the rest of it."""
        reading, self._reading = self._reading, None
        return reading.result() if reading else {}

    def close(self) -> None:
        """Closes the connection, once what is being read has come."""
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    def _close(self) -> None:
        if self._buffer is not None:
            self._runner.run(self._buffer.close())
        self._runner.close()

    async def _read(self) -> Mapping[str, FinishedSample]:
        try:
            async with asyncio.timeout(READ_SECONDS):
                if self._buffer is None:
                    self._buffer = await self._connect()
                return await self._buffer.read_ahead(await self._likely(self._buffer))
        except (StreamRLError, TimeoutError) as error:
            logger.warning("nothing was read ahead, the load reads it all: %s: %s", type(error).__name__, error)
            return {}

    async def _likely(self, buffer: TrajectoryBuffer) -> list[int]:
        ready = await buffer.ready_groups(self._groups)
        if self._ranks == 1:
            return ready
        if len(ready) < self._groups:
            return []
        sizes = await buffer.group_bytes(ready)
        own = shard(sizes, self._mini_batches, self._rank, self._ranks)
        return [ready[place] for places in own for place in places]
