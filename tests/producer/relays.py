"""Producers that take turns at one sample: they share nothing but the buffer and the engine.

Every leg of a relay has a lease, a journal, an environment and a request of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stream_rl.buffer import RunRules, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.engine.fleet import Fleet
from stream_rl.engine.publish import WeightPublisher
from stream_rl.producer.chat import ChatEncoder
from stream_rl.producer.journal import BufferJournal
from stream_rl.producer.loading import Rollout
from stream_rl.producer.samples import rebuild
from stream_rl.producer.turn_loop import Episode
from stream_rl.sample import Sample, WeightVersion

VERSION = WeightVersion(200)


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


async def serve_version(url: str, folder: Path) -> str:
    """Gives the engine at `url` the weights of a folder as VERSION."""
    publisher = WeightPublisher()
    (update,) = await publisher.publish([("engine-0", url)], VERSION, folder)
    await publisher.close()
    assert update.ok, update.error
    return url


def played_so(rollout: Rollout, config: Config, temperature: float, stops: Sequence[int], chunk: int) -> Rollout:
    """The rollout of another run, at a temperature that no setting allows, with these ids as ends of a turn."""
    limits = config.rollout.model_copy(update={"temperature": temperature, "commit_every_tokens": chunk})
    chat = ChatEncoder(rollout.chat.tokenizer, stops, eyes=rollout.chat.eyes)
    return replace(rollout, config=config.model_copy(update={"rollout": limits}), chat=chat)


async def runners(
    stack: AsyncExitStack, rollout: Rollout, buffer_url: str, engine_url: str, words: int
) -> list[Runner]:
    """Producers `p` and `q` of a new run, whose one engine serves VERSION of a model with so many words."""
    made = []
    for name in ("p", "q"):
        buffer = await TrajectoryBuffer.connect(buffer_url, rollout.config.name, timeout=5.0)
        fleet = Fleet(vocab_size=words, timeout=60.0)
        stack.push_async_callback(buffer.close)
        stack.push_async_callback(fleet.close)
        await buffer.open_run(RunRules.of(rollout.config))
        await buffer.engine_joined("engine-0", engine_url, 1)
        await buffer.engine_serving("engine-0", VERSION)
        await buffer.heartbeat(name, 600.0)
        await fleet.refresh([("engine-0", engine_url)])
        made.append(Runner(name, buffer, fleet))
    return made


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
        await asyncio.wait_for(playing, 60)
        if episode.sample.stop_reason is not None:
            return episode.sample, sum(turn.finish_reason == "abort" for turn in episode.sample.turns)
        await runner.buffer.release([journal.lease])
    raise AssertionError


def assert_same(sample: Sample, whole: Sample) -> None:
    sample.check()
    assert sample.tokens.tolist() == whole.tokens.tolist()
    assert sample.loss_mask.tolist() == whole.loss_mask.tolist()
    assert sample.weight_versions == whole.weight_versions
    assert (sample.images, sample.image_tokens) == (whole.images, whole.image_tokens)
    np.testing.assert_allclose(sample.rollout_log_probs, whole.rollout_log_probs, atol=1e-4)
    assert (sample.stop_reason, sample.reward) == (whole.stop_reason, whole.reward)
