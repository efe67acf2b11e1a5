"""A round: a load on the engine, and new weights under it again and again, by one policy.

none            no updates: what the others are held against
retract, in_place, abort    `engine.pause_mode`, by the project's publisher
turn boundary   new requests are held back, and the update waits until those under way have ended
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self, get_args

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from interruptions.checkpoints import Checkpoints
from interruptions.load import Context, Load, Sequence
from stream_rl.engine.client import EngineClient, PauseMode
from stream_rl.engine.publish import WeightPublisher
from stream_rl.errors import WeightUpdateFailed
from stream_rl.models.tiny_text import WORDS
from stream_rl.sample import WeightVersion

__all__ = ["INTERRUPTING", "NONE", "POLICIES", "TURN_BOUNDARY", "Engine", "Played", "play"]

INTERRUPTING: dict[str, PauseMode] = {mode: mode for mode in get_args(PauseMode)}
NONE, TURN_BOUNDARY = "none", "turn boundary"
POLICIES = (NONE, *INTERRUPTING, TURN_BOUNDARY)
PLAIN_WORDS = range(WORDS.index("0"), len(WORDS))
PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Played:
    """What a round gave.

    seconds     of the whole round
    serving     for each update, seconds from its start until a request that comes after it has a token
    prefilled   tokens that the engine prefilled
    """

    seconds: float
    sequences: list[Sequence]
    serving: list[float]
    prefilled: int

    @property
    def written(self) -> int:
        """Generated tokens."""
        return sum(sequence.written for sequence in self.sequences)

    @property
    def prefilled_again(self) -> int:
        """Tokens prefilled beyond each prompt's first time, and beyond the one of each request that asks for a token
        after an update."""
        first = sum(len(sequence.prompt) for sequence in self.sequences if sequence.begun)
        return self.prefilled - first - len(self.serving)


class Engine:
    """One server, and publishers that give it the checkpoints in turn. Use it with `async with`."""

    def __init__(self, url: str, checkpoints: Checkpoints) -> None:
        self.client = EngineClient(url, vocab_size=len(WORDS))
        self._url = url
        self._checkpoints = checkpoints
        self._publishers = {mode: WeightPublisher(timeout=PATIENCE, pause_mode=mode) for mode in get_args(PauseMode)}
        self._version = WeightVersion(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.close()
        for publisher in self._publishers.values():
            await publisher.close()

    async def publish(self, mode: PauseMode) -> None:
        """Gives it the next version. Raises WeightUpdateFailed."""
        self._version = WeightVersion(self._version.step + 1)
        folder = self._checkpoints.folder(self._version)
        (update,) = await self._publishers[mode].publish([("engine-0", self._url)], self._version, folder)
        if not update.ok:
            raise WeightUpdateFailed(f"an update under {mode} failed: {update.error}")

    async def prefilled(self) -> int:
        """Tokens that it has prefilled since its start."""
        async with aiohttp.ClientSession() as session, session.get(f"{self._url}/metrics") as answer:
            families = text_string_to_metric_families(await answer.text())
        samples = (sample for family in families for sample in family.samples)
        return sum(
            int(sample.value)
            for sample in samples
            if sample.name == "sglang:realtime_tokens_total" and sample.labels["mode"] == "prefill_compute"
        )


async def play(engine: Engine, policy: str, context: Context, *, updates: int, interval: float, seed: int) -> Played:
    """Starts from an empty cache; an update begins every `interval` seconds, or when the last one is over."""
    await engine.publish("retract")
    before, began, serving = await engine.prefilled(), time.monotonic(), []
    async with Load(engine.client, context, PLAIN_WORDS, seed) as load:
        await asyncio.sleep(interval)
        for _ in range(updates):
            asked = time.monotonic()
            if policy != NONE:
                await _update(engine, policy, load)
                serving.append(time.monotonic() - asked)
            await asyncio.sleep(max(0.0, asked + interval - time.monotonic()))
    seconds = time.monotonic() - began
    return Played(seconds, load.sequences, serving, await engine.prefilled() - before)


async def _update(engine: Engine, policy: str, load: Load) -> None:
    if policy == TURN_BOUNDARY:
        async with load.held():
            await engine.publish("retract")
    else:
        await engine.publish(INTERRUPTING[policy])
    await engine.client.probe(timeout=PATIENCE)
