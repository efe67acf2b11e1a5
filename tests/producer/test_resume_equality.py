"""Wherever a trajectory is cut, and whoever goes on with it, it comes out the same, id for id. On real SGLang.

Greedy, and sampled by seeds; float32, fixed weights; relays.py has who takes turns at it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from relays import Runner, aborted_at_random, assert_same, cut_after, played_so, runners, serve_version, uninterrupted
from rollouts import ids

from stream_rl.models.tiny_text import WORDS
from stream_rl.producer.loading import Rollout
from stream_rl.sample import StopReason

TURNS = 5
SEEDED, GREEDY = 1.0, 0.0
# More than the end token, so that turns of this untrained model end before their limit; greedy ones go in circles.
STOPS = {SEEDED: "<|im_end|> 1 2 3", GREEDY: "<|im_end|> 1 2 3 4 5 6 7 8"}
RELAYS = 8


@pytest.fixture
async def serving(sglang, tiny_model: Path) -> str:
    """The URL of the server, which serves the tiny model."""
    return await serve_version(sglang.url, tiny_model)


@pytest.fixture
async def relay(config, rollout, server, serving) -> AsyncIterator[Callable[..., AsyncIterator]]:
    """`await relay(temperature, chunk)`: a new run of the same sample, and two producers that may play it."""
    settings = {
        "environment.path": "scripted_env", "environment.args": {"kind": "replay"}, "rollout.max_turns": TURNS,
        "rollout.max_turn_len": 64, "rollout.max_response_len": 900, "rollout.max_context_len": 1000,
    }  # fmt: skip
    loaded = rollout(**settings)
    async with AsyncExitStack() as stack:

        async def begin(temperature: float, chunk: int = 2048) -> tuple[Rollout, list[Runner]]:
            mine = played_so(loaded, config(**settings), temperature, ids(STOPS[temperature]), chunk)
            return mine, await runners(stack, mine, server.url, serving, len(WORDS))

        yield begin


@pytest.mark.parametrize("temperature", [GREEDY, SEEDED])
async def test_cut_at_every_token_and_moved_it_is_the_same_trajectory(relay, temperature):
    whole = await uninterrupted(*await relay(temperature))
    generated = int(whole.loss_mask.sum())
    assert (whole.stop_reason, whole.next_turn) == (StopReason.MAX_TURNS, TURNS)
    assert generated > 3 * TURNS

    places = [await relay(temperature) for _ in range(1, generated)]
    cut = await asyncio.gather(*(cut_after(n, *place) for n, place in enumerate(places, 1)))

    for sample in cut:
        assert_same(sample, whole)


@pytest.mark.parametrize("temperature", [GREEDY, SEEDED])
async def test_aborted_at_any_moment_moved_and_committed_in_chunks_it_is_the_same_trajectory(relay, temperature):
    whole = await uninterrupted(*await relay(temperature))
    chance = random.Random(7)

    places = [await relay(temperature, chunk=chance.choice([2, 5, 2048])) for _ in range(RELAYS)]
    ended = await asyncio.gather(*(aborted_at_random(chance, *place) for place in places))

    for sample, _ in ended:
        assert_same(sample, whole)
    assert sum(aborts for _, aborts in ended) >= RELAYS / 2
