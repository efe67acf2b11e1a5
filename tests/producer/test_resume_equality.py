"""Wherever a trajectory is cut, and whoever goes on with it, it comes out the same, id for id. On real SGLang.

Greedy, and sampled by seeds; float32, fixed weights. The producers `p` and `q` share nothing but the buffer and the
engine: every leg of a relay has a lease, a journal, an environment and a request of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from rollouts import ids

from stream_rl.buffer import RunRules, TrajectoryBuffer
from stream_rl.engine.fleet import Fleet
from stream_rl.engine.publish import WeightPublisher
from stream_rl.models.tiny_text import WORDS
from stream_rl.producer.chat import ChatEncoder
from stream_rl.producer.journal import BufferJournal
from stream_rl.producer.loading import Rollout
from stream_rl.producer.samples import rebuild
from stream_rl.producer.turn_loop import Episode
from stream_rl.sample import Sample, StopReason, WeightVersion

TURNS = 5
SEEDED, GREEDY = 1.0, 0.0
# More than the end token, so that turns of this untrained model end before their limit; greedy ones go in circles.
STOPS = {SEEDED: "<|im_end|> 1 2 3", GREEDY: "<|im_end|> 1 2 3 4 5 6 7 8"}
RELAYS = 8


@pytest.fixture
async def serving(sglang, tiny_model: Path) -> str:
    """The URL of the server, which serves the tiny model."""
    publisher = WeightPublisher()
    (update,) = await publisher.publish([("engine-0", sglang.url)], WeightVersion(200), tiny_model)
    await publisher.close()
    assert update.ok, update.error
    return sglang.url


@dataclass
class Runner:
    """One producer's share of a relay."""

    name: str
    buffer: TrajectoryBuffer
    fleet: Fleet

    async def take(self, rollout: Rollout, engines: Fleet | Cut | None = None) -> tuple[Episode, BufferJournal]:
        """Leases the sample, as far as it has come."""
        (leased,) = await self.buffer.lease(self.name, 1)
        journal = BufferJournal(self.buffer, leased, "relay")
        sample, row = rebuild(leased, rollout)
        begun = leased.start is not None
        return Episode(rollout, engines or self.fleet, journal, sample, row, begun=begun), journal


class Cut:
    """The fleet, until so many tokens were generated: there the episode is interrupted."""

    def __init__(self, fleet: Fleet, tokens: int) -> None:
        self._fleet = fleet
        self._left = tokens
        self.interrupt: Callable[[], None] = lambda: None

    async def generate(self, session_id, input_ids, sampling, **named):
        allowed = min(self._left, sampling.max_new_tokens)
        answer = await self._fleet.generate(session_id, input_ids, replace(sampling, max_new_tokens=allowed), **named)
        self._left -= len(answer.tokens)
        if self._left:
            return answer
        self.interrupt()
        return replace(answer, finish_reason="abort")


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
            chat = ChatEncoder(loaded.chat._tokenizer, ids(STOPS[temperature]))
            mine = replace(loaded, config=config(**settings), chat=chat)
            # No setting allows greedy training; the loop takes what the sample says.
            limits = mine.config.rollout.model_copy(update={"temperature": temperature, "commit_every_tokens": chunk})
            mine = replace(mine, config=mine.config.model_copy(update={"rollout": limits}))
            runners = []
            for name in ("p", "q"):
                buffer = await TrajectoryBuffer.connect(server.url, mine.config.name, timeout=5.0)
                fleet = Fleet(vocab_size=len(WORDS), timeout=20.0)
                stack.push_async_callback(buffer.close)
                stack.push_async_callback(fleet.close)
                await buffer.open_run(RunRules.of(mine.config))
                await buffer.engine_joined("engine-0", serving, 1)
                await buffer.engine_serving("engine-0", WeightVersion(200))
                await buffer.heartbeat(name, 600.0)
                await fleet.refresh([("engine-0", serving)])
                runners.append(Runner(name, buffer, fleet))
            return mine, runners

        yield begin


async def uninterrupted(rollout: Rollout, runners: list[Runner]) -> Sample:
    episode, _ = await runners[0].take(rollout)
    await episode.run()
    return episode.sample


async def cut_after(tokens: int, rollout: Rollout, runners: list[Runner]) -> Sample:
    """`p` plays until it has so many tokens; `q` plays the rest."""
    engines = Cut(runners[0].fleet, tokens)
    first, journal = await runners[0].take(rollout, engines)
    engines.interrupt = first.interrupt
    await first.run()
    await runners[0].buffer.release([journal.lease])
    second, _ = await runners[1].take(rollout)
    assert sum(len(turn.generated) for turn in second.sample.turns) == tokens
    await second.run()
    return second.sample


async def aborted_at_random(chance: random.Random, rollout: Rollout, runners: list[Runner]) -> tuple[Sample, int]:
    """The producers take turns, each until the engine aborts its request at some moment; also, how many aborts cut."""
    for leg, runner in enumerate(itertools.cycle(runners), 1):
        episode, journal = await runner.take(rollout)
        playing = asyncio.create_task(episode.run())
        # Later legs are given more, so that a slow machine comes to an end too.
        await asyncio.wait({playing}, timeout=chance.uniform(0.0, 0.005 * 1.3**leg))
        episode.interrupt()
        await runner.fleet.abort(episode.request_id)
        await asyncio.wait_for(playing, 20)
        if episode.sample.stop_reason is not None:
            return episode.sample, sum(turn.finish_reason == "abort" for turn in episode.sample.turns)
        await runner.buffer.release([journal.lease])
    raise AssertionError


def assert_same(sample: Sample, whole: Sample) -> None:
    sample.check()
    assert sample.tokens.tolist() == whole.tokens.tolist()
    assert sample.loss_mask.tolist() == whole.loss_mask.tolist()
    assert sample.weight_versions == whole.weight_versions
    np.testing.assert_allclose(sample.rollout_log_probs, whole.rollout_log_probs, atol=1e-4)
    assert (sample.stop_reason, sample.reward) == (whole.stop_reason, whole.reward)


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
