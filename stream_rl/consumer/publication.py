"""The trainer's weights on their way to the engines, and which engine the buffer may count as serving.

Invariants: an engine is recorded as serving a version only after it said that it does; one that failed its update is
taken off the buffer's list, so that it gets no requests until its keeper brings it back as a joining one; joining
engines get the version that was published last, never an unpublished one; one that an evaluation has pinned keeps its
version until it is released, and is brought up to date then; one that disagrees with the trainer's probe (probe.py) is
put out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch.distributed as dist

from stream_rl.buffer import EngineRecord, TrajectoryBuffer
from stream_rl.consumer.probe import Probe
from stream_rl.consumer.transport import WeightTransport
from stream_rl.engine.publish import UPDATE_PARTS, WeightPublisher
from stream_rl.errors import EngineError
from stream_rl.metrics import catalog
from stream_rl.sample import WeightVersion

__all__ = ["Publication"]

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
"""What the start of an evaluation may take, and its end; whoever keeps it releases the engine before, if it can."""


class _Asked(NamedTuple):
    """An engine that was asked for the probe's log-prob, and what the trainer's was."""

    engine: EngineRecord
    expected: float
    answer: asyncio.Task[float]


class Publication:
    """Publishes versions. Every rank has one; only rank 0's talks to engines.

    A probe waits in an engine's queue like any request, which may be long: nobody waits for it.

    Args:
        runner: the event loop that drives buffer and publisher.
        buffer: knows the engines.
        publisher: puts engines in order after another trainer's death.
        transport: how the weights travel.
        probe: what an engine must agree on.
    """

    def __init__(
        self, runner: asyncio.Runner, buffer: TrajectoryBuffer, publisher: WeightPublisher, transport: WeightTransport,
        probe: Probe,
    ) -> None:  # fmt: skip
        self._runner = runner
        self._buffer = buffer
        self._publisher = publisher
        self._transport = transport
        self._probe = probe
        self._expected = 0.0
        self._asked: dict[str, _Asked] = {}
        self._version: WeightVersion | None = None
        self.seconds = dict.fromkeys(UPDATE_PARTS, 0.0)
        """Of the last publication, the longest that an engine took; known to rank 0."""

    def recover(self) -> None:
        """Frees engines from what an earlier trainer left; those in the middle of an update are put out."""
        if dist.get_rank() == 0:
            self._runner.run(self._recover())

    def publish(self, version: WeightVersion) -> None:
        """Gives every engine the policy's weights as they are now. A collective.

        Engines that fail are quarantined; with none left the run goes on, and waits for one to join.
        """
        self._transport.prepare(version)
        self._expected = self._probe.log_prob()
        self._version = version
        self.seconds = dict.fromkeys(UPDATE_PARTS, 0.0)
        if dist.get_rank() == 0:
            self._runner.run(self._update_all())
            catalog.TRAINER_VERSION.set(version.step)

    def close(self) -> None:
        """Leaves nothing open."""
        self._runner.run(self._close())

    def pin(self, seconds: float) -> None:
        """Keeps one engine at the version that was published last: an evaluation of at most `seconds` plays on it.

        Nothing happens while another is still pinned: an evaluation that takes longer than the steps between two costs
        the second.
        """
        if dist.get_rank() == 0:
            self._runner.run(self._pin(seconds))

    async def update_behind(self) -> None:
        """Gives engines that joined or were released since the last publication its version, and looks at the probes
        that were answered meanwhile. Rank 0 only."""
        await self._judge()
        await self._update([engine for engine in await self._free() if engine.version != self._version])

    async def _update_all(self) -> None:
        await self._update(await self._free())

    async def _free(self) -> list[EngineRecord]:
        return [engine for engine in await self._buffer.engines() if engine.pinned is None]

    async def _pin(self, seconds: float) -> None:
        engines = await self._buffer.engines()
        if any(engine.pinned is not None for engine in engines):
            logger.warning("version %s is not evaluated: the evaluation before it goes on", self._version)
            return
        for engine in engines:
            if engine.version == self._version and await self._buffer.pin_engine(
                engine.engine_id, seconds + START_SECONDS
            ):
                return
        logger.warning("version %s is not evaluated: no engine serves it", self._version)

    async def _update(self, engines: Sequence[EngineRecord]) -> None:
        if self._version is None or not engines:
            return
        places = [(engine.engine_id, engine.url) for engine in engines]
        updates = await self._transport.send(places, self._version)
        self.seconds = {part: max(update.seconds[part] for update in updates) for part in UPDATE_PARTS}
        for engine, update in zip(engines, updates, strict=True):
            if update.error is None:
                await self._serving(engine, self._version)
                await self._ask(engine, self._version)
            else:
                logger.error("engine %s did not take version %s: %s", engine.engine_id, self._version, update.error)
                await self._quarantine(engine)

    async def _ask(self, engine: EngineRecord, version: WeightVersion) -> None:
        if (earlier := self._asked.pop(engine.engine_id, None)) is not None:
            earlier.answer.cancel()
            catalog.ENGINE_PROBES.inc(engine=engine.engine_id, outcome="overtaken")
        answer = self._publisher.client(engine.url).log_prob(self._probe.tokens, extra_key=f"probe {version}")
        self._asked[engine.engine_id] = _Asked(engine, self._expected, asyncio.create_task(answer))

    async def _judge(self) -> None:
        """Looks at the answers that have come; an engine that computes something else is stopped and put out."""
        for engine_id, asked in [(name, asked) for name, asked in self._asked.items() if asked.answer.done()]:
            del self._asked[engine_id]
            try:
                found = asked.answer.result()
            except EngineError as error:  # it may be about to be found dead, or say no log-probs of its input
                logger.warning("engine %s did not answer the probe after its update: %s", engine_id, error)
                catalog.ENGINE_PROBES.inc(engine=engine_id, outcome="unanswered")
                continue
            agrees = abs(found - asked.expected) <= self._probe.tolerance  # which a NaN is not
            catalog.ENGINE_PROBES.inc(engine=engine_id, outcome="agreed" if agrees else "disagreed")
            if not agrees:
                logger.error(
                    "engine %s has other weights than it was given: its log-prob of the probe is %.4f, the trainer's "
                    "%.4f", engine_id, found, asked.expected,
                )  # fmt: skip
                await self._publisher.stop(asked.engine.url)
                await self._quarantine(asked.engine)

    async def _close(self) -> None:
        for asked in self._asked.values():
            asked.answer.cancel()
        if self._asked:
            await asyncio.wait([asked.answer for asked in self._asked.values()])
        await self._transport.close()

    async def _serving(self, engine: EngineRecord, version: WeightVersion) -> None:
        try:
            await self._buffer.engine_serving(engine.engine_id, version, engine.pid)
        except ValueError as error:
            # It left while it was updated; as a joining engine it gets the version again.
            logger.warning("engine %s is not counted as serving: %s", engine.engine_id, error)

    async def _quarantine(self, engine: EngineRecord) -> None:
        # Its keeper may have brought it back meanwhile, as another process: that one is left alone.
        known = {(known.engine_id, known.url, known.pid) for known in await self._buffer.engines()}
        if (engine.engine_id, engine.url, engine.pid) in known:
            await self._buffer.engine_left(engine.engine_id)

    async def _recover(self) -> None:
        engines = await self._buffer.engines()
        updates = await self._publisher.recover((engine.engine_id, engine.url) for engine in engines)
        for engine, update in zip(engines, updates, strict=True):
            if not update.ok:
                logger.warning("engine %s could not be put in order: %s", engine.engine_id, update.error)
                await self._quarantine(engine)
