"""A fake engine and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest

from stream_rl.engine.client import EngineClient
from stream_rl.sample import Int32
from stream_rl.testing import FakeEngineServer, seeded

VOCAB = 32


@pytest.fixture
def prompt() -> Int32:
    """The ids of a user message of one word, up to the assistant's turn."""
    return np.array([3, 7, 5, 27, 4, 5, 3, 8, 5], np.int32)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngineServer]:
    """Writes seeded tokens, as fast as it can, at version 0."""
    async with FakeEngineServer(seeded(0, VOCAB), vocab_size=VOCAB) as running:
        yield running


@pytest.fixture
async def client(engine: FakeEngineServer) -> AsyncIterator[EngineClient]:
    """A client of `engine`."""
    async with EngineClient(engine.url, vocab_size=VOCAB) as connected:
        yield connected
