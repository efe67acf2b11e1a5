"""A producer and its engine in one thread: seeded random turns committed to a real buffer, a fake SGLang beside them.

What a sample says depends on its place in the run alone; which versions it says it by depends on when it was played.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

import numpy as np

from stream_rl.buffer import LeasedSample, Outcome, RunState, SampleStart, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.engine.client import EngineClient
from stream_rl.errors import LeaseLost
from stream_rl.sample import Status, StopReason, Turn, VersionSpan, WeightVersion
from stream_rl.testing import FakeEngineServer, seeded

VOCABULARY = 32
START_SECONDS = 30.0


class Rollouts:
    """Plays from `with` to its end, or until the run is finished."""

    def __init__(self, config: Config, buffer_url: str) -> None:
        self._config = config
        self._buffer_url = buffer_url
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._ready = threading.Event()
        self._stop = threading.Event()
        self.engine = FakeEngineServer(seeded(0, VOCABULARY), vocab_size=VOCABULARY, version="default")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(START_SECONDS)

    async def _run(self) -> None:
        buffer = await TrajectoryBuffer.connect(self._buffer_url, self._config.name, timeout=10.0)
        async with buffer, self.engine, EngineClient(self.engine.url, vocab_size=VOCABULARY) as client:
            await buffer.engine_joined("engine-0", self.engine.url, 1)
            self._ready.set()
            while not self._stop.is_set() and await buffer.heartbeat("player", 60.0) is not RunState.FINISHED:
                for sample in await buffer.lease("player", 3):
                    await play(buffer, sample, await client.weight_version())
                await asyncio.sleep(0.005)


async def play(buffer: TrajectoryBuffer, sample: LeasedSample, version: WeightVersion) -> None:
    where = sample.lease.sample_id
    random = np.random.default_rng([where.group, where.index])
    start = SampleStart("prompt", random.integers(6, VOCABULARY, 4).astype(np.int32), temperature=0.9)
    turns = [_turn(random, number, version) for number in range(int(random.integers(1, 4)))]
    reward = Outcome(Status.COMPLETED, StopReason.ENV_DONE, float(random.integers(0, 2)))
    try:
        await buffer.commit(sample.lease, 0, [start, *turns], reward)
    except LeaseLost:
        # The run was drained between the lease and its commit.
        return


def _turn(random: np.random.Generator, number: int, version: WeightVersion) -> Turn:
    length = int(random.integers(1, 5))
    return Turn(
        number,
        random.integers(6, VOCABULARY, length).astype(np.int32),
        random.normal(-3.4, 0.1, length).astype(np.float32),
        random.integers(6, VOCABULARY, int(random.integers(0, 4))).astype(np.int32),
        (VersionSpan(0, length, version),),
    )
