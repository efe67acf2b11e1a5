"""The trainer's weights on their way to the engines, and which engine the buffer may count as serving.

Invariants: an engine is recorded as serving a version only after it said that it does; one that failed its update is
taken off the buffer's list, so that it gets no requests until its keeper brings it back as a joining one; joining
engines get the version that was published last, never an unpublished one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import torch.distributed as dist

from stream_rl.buffer import EngineRecord, TrajectoryBuffer
from stream_rl.consumer.weights import WeightFolders
from stream_rl.engine.publish import EngineUpdate, WeightPublisher
from stream_rl.metrics import catalog
from stream_rl.sample import WeightVersion

LOGGER = logging.getLogger(__name__)


class Publication:
    """Publishes versions from disk. Every rank has one; only rank 0's talks to engines.

    Args:
        runner: the event loop that drives buffer and publisher.
        buffer: knows the engines.
        publisher: makes the updates.
        folders: writes the weights.
    """

    def __init__(
        self, runner: asyncio.Runner, buffer: TrajectoryBuffer, publisher: WeightPublisher, folders: WeightFolders
    ) -> None:
        self._runner = runner
        self._buffer = buffer
        self._publisher = publisher
        self._folders = folders
        self._version: WeightVersion | None = None

    def recover(self) -> None:
        """Frees engines from an update that an earlier trainer left half done."""
        if dist.get_rank() == 0:
            self._runner.run(self._recover())

    def publish(self, version: WeightVersion) -> None:
        """Gives every engine the policy's weights as they are now. A collective.

        Engines that fail are quarantined; with none left the run goes on, and waits for one to join.
        """
        self._folders.write(version)
        self._version = version
        if dist.get_rank() == 0:
            self._runner.run(self._update_all())
            # Every update has ended, well or not: no engine reads an older folder any more.
            self._folders.prune([version])
            catalog.TRAINER_VERSION.set(version.step)

    async def update_joining(self) -> None:
        """Gives engines that joined since the last publication its version. Rank 0 only."""
        await self._update([engine for engine in await self._buffer.engines() if engine.state == "joining"])

    async def _update_all(self) -> None:
        await self._update(await self._buffer.engines())

    async def _update(self, engines: Sequence[EngineRecord]) -> None:
        if self._version is None or not engines:
            return
        places = [(engine.engine_id, engine.url) for engine in engines]
        for update in await self._publisher.publish(places, self._version, self._folders.path(self._version)):
            await self._record(update, self._version)

    async def _record(self, update: EngineUpdate, version: WeightVersion) -> None:
        if update.ok:
            await self._buffer.engine_serving(update.engine_id, version)
        else:
            LOGGER.error("engine %s did not take version %s: %s", update.engine_id, version, update.error)
            await self._buffer.engine_left(update.engine_id)

    async def _recover(self) -> None:
        engines = await self._buffer.engines()
        for update in await self._publisher.recover((engine.engine_id, engine.url) for engine in engines):
            if not update.ok:
                LOGGER.warning("engine %s could not be put in order: %s", update.engine_id, update.error)
