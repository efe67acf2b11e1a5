"""Sequences that are generated for as long as the load runs: so many at once, and a new one for each that ends.

A request that the engine ends early goes on from the tokens that it had, as a producer's does. Every sequence has its
own cached prefixes: what is prefilled beyond its prompt is prefilled again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from stream_rl.engine.client import EngineClient
from stream_rl.engine.generation import Generation, SamplingParams
from stream_rl.sample import Float32, Int32, WeightVersion

__all__ = ["Context", "Load", "Sequence"]


@dataclass(frozen=True, slots=True)
class Context:
    """Sequences of a kind: tokens of a prompt and tokens generated, each as (least, most), and how many at once."""

    name: str
    prompt: tuple[int, int]
    generated: tuple[int, int]
    live: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """A prompt, int32 (p,), how many tokens are wanted, and what each of its requests gave."""

    name: str
    prompt: Int32
    wanted: int
    pieces: list[Generation] = field(default_factory=list)

    @property
    def tokens(self) -> Int32:
        """Prompt and generated ids, int32 (p + g,)."""
        return np.concatenate([self.prompt, *(piece.tokens for piece in self.pieces)])

    @property
    def log_probs(self) -> Float32:
        """Of the generated tokens, float32 (g,)."""
        return np.concatenate([np.zeros(0, np.float32), *(piece.log_probs for piece in self.pieces)])

    @property
    def versions(self) -> list[WeightVersion]:
        """Which one wrote each generated token."""
        spans = [span for piece in self.pieces for span in piece.spans]
        return [span.version for span in spans for _ in range(span.start, span.end)]

    @property
    def written(self) -> int:
        """Generated tokens."""
        return sum(len(piece.tokens) for piece in self.pieces)

    @property
    def begun(self) -> bool:
        """Whether the engine has read the prompt."""
        return any(piece.prompt_tokens for piece in self.pieces)


class Load:
    """Keeps `context.live` sequences under way. Enter it with `async with`: it ends what is left under way.

    Args:
        client: of the engine.
        words: ids that prompts are drawn from.
        seed: of prompts and lengths.
    """

    def __init__(self, client: EngineClient, context: Context, words: range, seed: int) -> None:
        self.sequences: list[Sequence] = []
        self._client = client
        self._context = context
        self._words = words
        self._random = np.random.default_rng(seed)
        self._names = (f"{context.name}-{seed}-{number}" for number in itertools.count())
        self._running: set[str] = set()
        self._changed = asyncio.Condition()
        self._held = self._over = False
        self._players: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._players = [asyncio.create_task(self._play()) for _ in range(self._context.live)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await asyncio.gather(*(self._client.abort(name) for name in self._running))
        await asyncio.gather(*self._players)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Waits until every request has ended; new ones wait until the block's end."""
        async with self._changed:
            self._held = True
            await self._changed.wait_for(lambda: not self._running)
        try:
            yield
        finally:
            async with self._changed:
                self._held = False
                self._changed.notify_all()

    async def _play(self) -> None:
        while not self._over:
            sequence = self._next()
            self.sequences.append(sequence)
            while sequence.written < sequence.wanted and not self._over:
                await self._continue(sequence)

    async def _continue(self, sequence: Sequence) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._held)
            self._running.add(sequence.name)
        try:
            sampling = SamplingParams(sequence.wanted - sequence.written)
            sequence.pieces.append(
                await self._client.generate(sequence.tokens, sampling, extra_key=sequence.name, rid=sequence.name)
            )
        finally:
            async with self._changed:
                self._running.remove(sequence.name)
                self._changed.notify_all()

    def _next(self) -> Sequence:
        ends = self._context.prompt, self._context.generated
        prompt, wanted = (int(self._random.integers(least, most, endpoint=True)) for least, most in ends)
        ids = self._random.integers(self._words.start, self._words.stop, prompt).astype(np.int32)
        return Sequence(next(self._names), ids, wanted)
