"""What an engine answers that is no answer fails its sample by name: it never becomes a finished one without loss."""

from __future__ import annotations

import itertools

import orjson
import pytest
from aiohttp import web
from rollouts import ID, ScriptedEngines, ids, play, replies

from stream_rl.engine.fleet import Fleet
from stream_rl.models.tiny_text import WORDS
from stream_rl.sample import Status, StopReason
from stream_rl.testing import FakeEngineServer, scripted


class Generous(FakeEngineServer):
    """Writes one token more than it was asked for."""

    async def _generate(self, http: web.Request) -> web.Response:
        body = await http.json()
        body["sampling_params"]["max_new_tokens"] += 1
        http._read_bytes = orjson.dumps(body)  # what `read` gives
        return await super()._generate(http)


@pytest.mark.parametrize(
    ("engine", "reply", "message"),
    [
        (FakeEngineServer, [], "the engine ended with 'stop' and gave no token"),
        (Generous, [ID["4"]] * 100, "the engine gave 9 tokens where 8 were asked for"),
    ],
)
async def test_no_token_and_too_many_are_no_answer(rollout, engine, reply, message):
    async with engine(scripted(reply), vocab_size=len(WORDS)) as serving:
        fleet = Fleet(vocab_size=len(WORDS), timeout=5.0)
        await fleet.refresh([("engine-0", serving.url)])
        sample, journal = await play(rollout(), fleet)
        await fleet.close()

    assert (sample.status, sample.stop_reason) == (Status.FAILED, StopReason.ENGINE_FAILURE)
    assert journal.failure == (StopReason.ENGINE_FAILURE, message)
    assert not journal.records


async def test_one_that_only_aborts_is_given_up_at_the_deadline(rollout, monkeypatch):
    monkeypatch.setattr("stream_rl.producer.turn_loop.ABORT_PAUSE", 0.001)
    engines = ScriptedEngines(lambda _: ids("4 <|im_end|>"), cuts=itertools.repeat(0))
    sample, journal = await play(rollout(**{"rollout.deadline": 0.1}), engines)

    assert (sample.status, sample.stop_reason) == (Status.FAILED, StopReason.ENGINE_FAILURE)
    assert journal.failure is not None
    assert journal.failure[1] == "no token within rollout.deadline=0.1 seconds"


async def test_a_first_observation_without_room_fails_its_sample_and_not_the_run(rollout):
    loaded = rollout(**{
        "environment.path": "tool_role_env", "environment.args": {"first": "higher " * 20},
        "rollout.max_context_len": 24,
    })  # fmt: skip
    sample, journal = await play(loaded, ScriptedEngines(replies("4 .")))

    assert (sample.status, sample.stop_reason) == (Status.FAILED, StopReason.ENV_FAILURE)
    assert journal.failure is not None
    assert "with what is shown first, which leaves no room within rollout.max_context_len=24" in journal.failure[1]
