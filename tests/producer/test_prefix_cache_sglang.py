"""A later turn is computed from where the one before it ended: by the engine that has its prefix. On real SGLang."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
from relays import VERSION, played_so, serve_version
from rollouts import ids, play

from stream_rl.engine.fleet import Fleet
from stream_rl.engine.generation import Generation, SamplingParams
from stream_rl.models.tiny_text import WORDS
from stream_rl.sample import StopReason
from stream_rl.testing import FakeEngineServer, seeded

TURNS = 5
STOPS = "<|im_end|> 1 2 3"  # more than the end token, so that turns of an untrained model end before their limit


class Affine:
    """A fleet of two whose first engine is busy until the second, the real one, has answered once."""

    def __init__(self, fleet: Fleet, busy: FakeEngineServer) -> None:
        self._fleet = fleet
        self._busy = busy
        self.answers: list[tuple[int, Generation]] = []

    async def generate(self, session_id, input_ids, sampling, **named):
        answer = await self._fleet.generate(session_id, input_ids, sampling, **named)
        self.answers.append((len(input_ids), answer))
        self._busy.resume()
        return answer


async def test_a_sessions_turns_stay_with_its_engine_and_read_their_prefix_from_the_cache(
    config, rollout, sglang, tiny_model
):
    url = await serve_version(sglang.url, tiny_model)
    settings = {
        "environment.path": "scripted_env", "environment.args": {"kind": "replay"}, "rollout.max_turns": TURNS,
        "rollout.max_turn_len": 64, "rollout.max_response_len": 900, "rollout.max_context_len": 1000,
    }  # fmt: skip
    loaded = played_so(rollout(**settings), config(**settings), 1.0, ids(STOPS), 2048)
    fleet = Fleet(vocab_size=len(WORDS), timeout=60.0)
    async with FakeEngineServer(seeded(0, len(WORDS)), vocab_size=len(WORDS), version=str(VERSION)) as busy:
        await fleet.refresh([("engine-0", busy.url), ("engine-1", url)])
        busy.pause()
        other = asyncio.create_task(fleet.generate("other", np.array(ids("guess"), np.int32), SamplingParams(1)))
        await busy.arrived(1)
        engines = Affine(fleet, busy)
        sample, _ = await play(loaded, engines)
        await other
        await fleet.close()

    assert (sample.stop_reason, sample.next_turn) == (StopReason.MAX_TURNS, TURNS)
    assert len(busy.requests) == 1, "once both were idle again, a new session would have gone there"
    assert len(engines.answers) == TURNS
    for (before, _), (sent, answer) in itertools.pairwise(engines.answers):
        assert 0 < before <= answer.cached_tokens < sent
