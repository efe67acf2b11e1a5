"""The real server, through our client: what the fake one claims, and what only a model can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from stream_rl.engine.client import EngineClient, Generation, SamplingParams
from stream_rl.engine.publish import WeightPublisher
from stream_rl.engine.server import EngineServer
from stream_rl.errors import EngineRejected, EngineUnavailable
from stream_rl.models.tiny_text import make_tiny_text
from stream_rl.producer.cache_scope import CacheScope
from stream_rl.sample import Int32, VersionSpan, WeightVersion
from stream_rl.testing import FakeEngineServer, seeded

VERSION = WeightVersion(100)
EXACT = 1e-4
# The tiny model's likeliest token is never the end token; thousands of them take seconds.
ENDLESS = SamplingParams(4000, temperature=0.0)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same shape with other weights, five times as large, so that versions differ clearly."""
    folder = tmp_path_factory.mktemp("other")
    make_tiny_text(folder, seed=1, width=64)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.dim() > 1 else 1)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
async def publisher() -> AsyncIterator[WeightPublisher]:
    """Publishes to the real server."""
    publisher = WeightPublisher()
    yield publisher
    await publisher.close()


@pytest.fixture
async def real(sglang: EngineServer, publisher: WeightPublisher, tiny_model: Path) -> AsyncIterator[EngineClient]:
    """A client of the real server, which has the tiny model as version 100."""
    (update,) = await publisher.publish([("engine-0", sglang.url)], VERSION, tiny_model)
    assert update.ok, update.error
    async with EngineClient(sglang.url, vocab_size=32) as client:
        yield client


def greedy(count: int) -> SamplingParams:
    """The likeliest tokens."""
    return SamplingParams(count, temperature=0.0)


def sampled(count: int, seed: int, temperature: float = 1.0) -> SamplingParams:
    """Tokens by a seed."""
    return SamplingParams(count, temperature=temperature, sampling_seed=seed)


def reference(folder: Path, prompt: Int32, generation: Generation, temperature: float = 1.0) -> np.ndarray:
    """The log-probs of the generated tokens by transformers, float32 (g,)."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.from_numpy(np.concatenate([prompt, generation.tokens])).long()[None]
    with torch.no_grad():
        log_probs = (model(ids).logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    return log_probs.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_log_probs_are_of_the_distribution_sampled_from(
    real: EngineClient, prompt: Int32, tiny_model: Path, temperature: float
) -> None:
    generation = await real.generate(prompt, sampled(24, seed=3, temperature=temperature))
    expected = reference(tiny_model, prompt, generation, temperature)
    assert np.abs(generation.log_probs - expected).max() < EXACT
    assert generation.spans == (VersionSpan(0, len(generation.tokens), VERSION),)
    assert generation.prompt_tokens == len(prompt)
    assert generation.engine_seconds > 0


async def test_a_stop_token_is_part_of_the_answer(real: EngineClient, prompt: Int32) -> None:
    first = (await real.generate(prompt, greedy(1))).tokens[0]
    sampling = SamplingParams(8, temperature=0.0, stop_token_ids=(int(first),))
    generation = await real.generate(prompt, sampling)
    assert (generation.tokens.tolist(), generation.finish_reason) == ([first], "stop")
    assert len(generation.log_probs) == 1


async def test_a_seed_decides_alone_in_a_batch_and_after_a_cut(real: EngineClient, prompt: Int32) -> None:
    alone = await real.generate(prompt, sampled(16, seed=7))
    batch = await asyncio.gather(*(real.generate(prompt, sampled(16, seed=seed)) for seed in range(12)))
    assert np.array_equal(batch[7].tokens, alone.tokens)
    assert len({tuple(generation.tokens) for generation in batch}) == 12
    cut = await real.generate(prompt, sampled(2, seed=7))
    rest = await real.generate(np.concatenate([prompt, cut.tokens]), sampled(len(alone.tokens) - 2, seed=7))
    assert np.array_equal(np.concatenate([cut.tokens, rest.tokens]), alone.tokens)


async def test_refusals_name_the_reason_and_leave_the_server_alive(real: EngineClient, prompt: Int32) -> None:
    with pytest.raises(EngineRejected, match="maximum context length"):
        await real.generate(prompt, greedy(5000))
    with pytest.raises(EngineRejected, match="outside the model's vocabulary of 32"):
        await real.generate(np.array([3, 99], np.int32), greedy(1))
    with pytest.raises(EngineRejected, match="weights iterator"):
        await real.update_weights_from_disk("/no/such/folder", WeightVersion(101))
    await real.probe()
    assert (await real.server_info()).max_running_requests == 128


async def test_the_whole_context_can_be_used(real: EngineClient) -> None:
    prompt = np.resize(np.array([3, 7, 5], np.int32), 4095)
    assert len((await real.generate(prompt, greedy(1))).tokens) == 1


async def test_an_abort_returns_what_there_is(real: EngineClient, prompt: Int32) -> None:
    running = asyncio.create_task(real.generate(prompt, ENDLESS, rid="a"))
    await asyncio.sleep(0.5)
    await real.abort("a")
    generation = await running
    assert generation.finish_reason == "abort"
    assert 0 < len(generation.tokens) == len(generation.log_probs) < ENDLESS.max_new_tokens
    assert generation.spans[-1].end == len(generation.tokens)


async def test_a_paused_engine_lets_requests_wait(real: EngineClient, prompt: Int32) -> None:
    await real.pause()
    try:
        assert not await real.ready()
        with pytest.raises(EngineUnavailable):
            await real.probe(timeout=0.3)
        waiting = asyncio.create_task(real.generate(prompt, greedy(4), rid="w"))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
    finally:
        await real.continue_()
    assert len((await waiting).tokens) == 4
    assert await real.ready()


async def test_an_update_inside_a_request_is_two_spans_and_exact(
    real: EngineClient, publisher: WeightPublisher, prompt: Int32, tiny_model: Path, other_model: Path
) -> None:
    running = asyncio.create_task(real.generate(prompt, ENDLESS, rid="u"))
    await asyncio.sleep(0.5)
    (update,) = await publisher.publish([("engine-0", real.url)], WeightVersion(101), other_model)
    assert update.ok, update.error
    await asyncio.sleep(0.5)
    await real.abort("u")
    generation = await running
    old, new = generation.spans
    assert (old.version, new.version) == (VERSION, WeightVersion(101))
    for span, folder in ((old, tiny_model), (new, other_model)):
        expected = reference(folder, prompt, generation)
        difference = np.abs(generation.log_probs - expected)[span.start : span.end]
        assert difference.max() < EXACT
    again = await real.generate(prompt, sampled(8, seed=5))
    assert np.abs(again.log_probs - reference(other_model, prompt, again)).max() < EXACT


async def test_in_place_older_cache_is_shared_only_under_its_own_key(
    real: EngineClient, prompt: Int32, tiny_model: Path, other_model: Path
) -> None:
    """Also that the scope of a group counts every token that may have come from such a cache."""
    await real.generate(prompt, sampled(8, seed=5), extra_key="group-1")
    running = asyncio.create_task(real.generate(prompt, ENDLESS, rid="p", extra_key="group-2"))
    await asyncio.sleep(0.3)
    publisher = WeightPublisher(pause_mode="in_place")
    (update,) = await publisher.publish([("engine-0", real.url)], WeightVersion(101), other_model)
    await publisher.close()
    assert update.ok, update.error
    assert await real.weight_version() == WeightVersion(101)
    await asyncio.sleep(0.3)
    await real.abort("p")
    crossed = await running
    stale = await real.generate(prompt, sampled(8, seed=5), extra_key="group-1")
    fresh = await real.generate(prompt, sampled(8, seed=5), extra_key="group-3")

    old, new = crossed.spans
    assert (old.version, new.version) == (VERSION, WeightVersion(101))
    # The stamps are right to the token: what the old weights wrote is exact up to the change.
    before = np.abs(crossed.log_probs - reference(tiny_model, prompt, crossed))
    assert before[: old.end].max() < EXACT < before[old.end :].max()
    assert np.abs(fresh.log_probs - reference(other_model, prompt, fresh)).max() < EXACT
    assert np.abs(stale.log_probs - reference(other_model, prompt, stale)).max() > EXACT
    scope = CacheScope("key", VERSION.step)
    assert [scope.older(each) for each in (crossed, stale, fresh)] == [new.end - new.start, len(stale.tokens), 0]


async def test_after_an_aborting_update_the_rest_is_exact(
    real: EngineClient, prompt: Int32, tiny_model: Path, other_model: Path
) -> None:
    running = asyncio.create_task(real.generate(prompt, ENDLESS))
    await asyncio.sleep(0.3)
    publisher = WeightPublisher(pause_mode="abort")
    (update,) = await publisher.publish([("engine-0", real.url)], WeightVersion(101), other_model)
    await publisher.close()
    assert update.ok, update.error
    cut = await running
    given = np.concatenate([prompt, cut.tokens])
    rest = await real.generate(given, sampled(8, seed=5))
    assert (cut.finish_reason, [span.version for span in cut.spans]) == ("abort", [VERSION])
    assert [span.version for span in rest.spans] == [WeightVersion(101)]
    assert np.abs(cut.log_probs - reference(tiny_model, prompt, cut)).max() < EXACT
    assert np.abs(rest.log_probs - reference(other_model, given, rest)).max() < EXACT


async def test_an_engine_left_in_the_middle_of_an_update_generates_nothing_before_the_next(
    real: EngineClient, publisher: WeightPublisher, prompt: Int32, tiny_model: Path
) -> None:
    await real.pause()
    await real.begin_weight_update()
    for _ in range(2):
        (left,) = await publisher.recover([("engine-0", real.url)])
        assert left.error is not None
        assert not await real.ready()
    (update,) = await publisher.publish([("engine-0", real.url)], VERSION, tiny_model)
    assert update.ok, update.error
    assert len((await real.generate(prompt, greedy(2))).tokens) > 0
    await real.end_weight_update()
    (orderly,) = await publisher.recover([("engine-0", real.url)])
    assert orderly.ok, orderly.error


async def test_the_fake_server_answers_in_the_real_ones_shape(real: EngineClient, prompt: Int32) -> None:
    async with (
        FakeEngineServer(seeded(0, 32), vocab_size=32, version=str(VERSION)) as fake,
        EngineClient(fake.url, vocab_size=32) as client,
    ):
        mine, theirs = [await each.generate(prompt, greedy(3)) for each in (client, real)]
        assert (mine.spans, mine.finish_reason, mine.prompt_tokens) == (
            theirs.spans,
            theirs.finish_reason,
            theirs.prompt_tokens,
        )
        assert await fails_alike(client.begin_weight_update(), real.begin_weight_update()) == (None, None)
        refused = await fails_alike(client.begin_weight_update(), real.begin_weight_update())
        assert refused == (EngineRejected, EngineRejected)
        assert await fails_alike(client.end_weight_update(), real.end_weight_update()) == (None, None)
        refused = await fails_alike(client.destroy_weights_group("none"), real.destroy_weights_group("none"))
        assert refused == (EngineRejected, EngineRejected)


async def fails_alike(*calls: Awaitable[None]) -> tuple[type[BaseException] | None, ...]:
    """The kind of error of each call, None where there is none."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    return tuple(type(result) if isinstance(result, BaseException) else None for result in results)
