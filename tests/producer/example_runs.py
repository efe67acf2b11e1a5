"""One step of an example: real buffer, real HTTP, fake engines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from rollouts import END, ID

from stream_rl.buffer import TrajectoryBuffer, Waiting
from stream_rl.config import Config
from stream_rl.engine.fleet import Fleet
from stream_rl.models.tiny_text import WORDS
from stream_rl.producer.loading import check_rollout, load_rollout
from stream_rl.producer.worker import Producer
from stream_rl.sample import Sample, WeightVersion
from stream_rl.testing import FakeEngineServer, scripted

Meanwhile = Callable[[Sequence[FakeEngineServer], TrajectoryBuffer], Awaitable[None]]


async def one_step(config: Config, open_buffer, engines: int = 1, meanwhile: Meanwhile | None = None) -> list[Sample]:
    """The samples of one step that a producer plays; the engines guess every number in turn.

    Args:
        meanwhile: what else happens, given the engines and the buffer.
    """
    await check_rollout(config)
    buffer: TrajectoryBuffer = await open_buffer(config)
    claim = await buffer.claim_trainer()
    fleet = Fleet(vocab_size=len(WORDS), timeout=10.0, pass_over=0.05, attempts=1)
    loaded = load_rollout(config)
    guesses = scripted(*([ID[str(number)], END] for number in range(1, 9)))
    async with AsyncExitStack() as stack:
        serving = []
        for number in range(engines):
            engine = await stack.enter_async_context(FakeEngineServer(guesses, vocab_size=len(WORDS), eos=END))
            await buffer.engine_joined(f"engine-{number}", engine.url, 1)
            await buffer.engine_serving(f"engine-{number}", WeightVersion(0))
            serving.append(engine)
        playing = asyncio.create_task(Producer(loaded, buffer, fleet, "p").run(asyncio.Event()))
        try:
            async with asyncio.timeout(60):
                if meanwhile is not None:
                    await meanwhile(serving, buffer)
                while isinstance(entry := await buffer.take_step(claim, 1), Waiting):
                    if playing.done():
                        playing.result()
                    await asyncio.sleep(0.01)
        finally:
            await buffer.finish_run()
            await asyncio.wait_for(playing, 10)
            await fleet.close()
            loaded.close()
    samples = [sample for group in await buffer.load_groups(entry.groups) for sample in group.samples]
    for sample in samples:
        sample.check()
    return samples
