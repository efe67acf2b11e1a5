"""Evaluations while a run goes on: whatever engine the trainer has pinned is played on, and released afterwards.

    trainer: publish T ─► pin engine i at T        supervisor: i is pinned ─► evaluate on i ─► release i ─► T' for i

The pin itself is the request: nothing has to be remembered by anybody who may die. A pin that is never released ends by
itself, and with its engine: then the evaluation ends too, for its version is served no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from stream_rl.buffer import EngineRecord, TrajectoryBuffer
from stream_rl.errors import EngineUnavailable, StreamRLError

__all__ = ["PinnedEvaluations"]

logger = logging.getLogger(__name__)


class PinnedEvaluations:
    """Looks for pinned engines, one evaluation at a time.

    Args:
        buffer: knows the pins.
        evaluate: plays on the engine of that name; its mean reward. Ends by itself in time.
        say: tells the person who watches.
        pause: seconds between two looks.
    """

    def __init__(
        self,
        buffer: TrajectoryBuffer,
        evaluate: Callable[[str], Coroutine[Any, Any, float]],
        say: Callable[[str], None],
        *,
        pause: float,
    ) -> None:
        self._buffer = buffer
        self._evaluate = evaluate
        self._say = say
        self._pause = pause
        self._idle = asyncio.Event()
        self._idle.set()

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            for engine in await self._buffer.engines():
                if engine.pinned is not None:
                    await self._play(engine)
            await asyncio.sleep(self._pause)

    async def finish(self, seconds: float) -> None:
        """Waits for the evaluation under way, if there is one, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("an evaluation did not end within %g s", seconds)

    async def _play(self, engine: EngineRecord) -> None:
        self._idle.clear()
        try:
            reward = await self._while_pinned(engine, self._evaluate(engine.engine_id))
            self._say(f"version {engine.pinned} scores {reward:.3f} on held-out prompts")
        except StreamRLError as error:
            logger.error("version %s could not be evaluated", engine.pinned, exc_info=error)
            self._say(f"version {engine.pinned} could not be evaluated, the training goes on: {error}")
        finally:
            if await self._is_pinned(engine):
                await self._buffer.release_engine(engine.engine_id)
            self._idle.set()

    async def _while_pinned(self, engine: EngineRecord, evaluation: Coroutine[Any, Any, float]) -> float:
        """What the evaluation gives. Raises EngineUnavailable, and ends it, once the pin is gone."""
        playing = asyncio.create_task(evaluation)
        try:
            while not (await asyncio.wait([playing], timeout=self._pause))[0]:
                if not await self._is_pinned(engine):
                    raise EngineUnavailable(f"{engine.engine_id} has left, or is pinned no more")
            return playing.result()
        finally:
            playing.cancel()
            await asyncio.wait([playing])

    async def _is_pinned(self, engine: EngineRecord) -> bool:
        """Whether it is still this version that is wanted: a newer pin of that name is another process's."""
        known = {known.engine_id: known.pinned for known in await self._buffer.engines()}
        return known.get(engine.engine_id) == engine.pinned
