"""Images on real SGLang: prompts read as sent, trajectories the same wherever they are cut, log-probs the trainer's."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from relays import (
    VERSION,
    Runner,
    aborted_at_random,
    assert_same,
    cut_after,
    played_so,
    runners,
    serve_version,
    uninterrupted,
)
from rollouts import run_config
from transformers import AutoTokenizer

from stream_rl.config import ModelConfig
from stream_rl.consumer.batching import flatten
from stream_rl.consumer.collectives import process_group
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.micro_batch import micro_batches, plan_passes
from stream_rl.consumer.model import Policy
from stream_rl.consumer.pictures import Pictures
from stream_rl.consumer.weights import WeightFolders
from stream_rl.engine.server import EngineServer
from stream_rl.models.tiny_vlm import FRAME, VLM_WORDS
from stream_rl.producer.loading import Rollout, load_rollout
from stream_rl.sample import Group, Sample

CPU = torch.device("cpu")
TURNS = 3
SEEDED, GREEDY = 1.0, 0.0
# More than the end token, so that turns of these untrained models end before their limit.
STOPS = [VLM_WORDS.index(word) for word in ("<|im_end|>", "up", "down", "left", "right", "go")]
SHORT, LONG = 12, 60
"""Tokens of a turn; long ones end with the end token alone."""
RELAYS = 6

_runs = itertools.count()

Relay = Callable[..., Awaitable[tuple[Rollout, list[Runner]]]]


@pytest.fixture
async def relay(vlm_sglang, tiny_vlm: Path, tmp_path: Path, server) -> AsyncIterator[Relay]:
    """`await relay(temperature, chunk, images=2)`: a new run of the same sample, and two producers that may play it.

    `length` is that of the turns, `seed` the run's.
    """
    url = await serve_version(vlm_sglang.url, tiny_vlm)
    side = FRAME["qwen2_5_vl" if "2.5" in tiny_vlm.name else "qwen3_vl"]

    def config(length: int, seed: int, args: dict[str, Any]) -> Any:
        return run_config(tmp_path / f"pictures-{next(_runs)}", tiny_vlm, {
            "environment.path": "picture_env", "environment.args": {"side": side, "first": True, **args},
            "rollout.max_turns": TURNS, "rollout.max_turn_len": length, "rollout.max_response_len": 900,
            "rollout.max_context_len": 1000, "seed": seed,
        })  # fmt: skip

    async with AsyncExitStack() as stack:
        loaded: dict[str, Rollout] = {}

        async def begin(
            temperature: float, chunk: int = 2048, length: int = SHORT, seed: int = 0, **args: Any
        ) -> tuple[Rollout, list[Runner]]:
            known = loaded.setdefault(f"{seed} {args}", load_rollout(config(length, seed, args)))
            stops = STOPS if length == SHORT else STOPS[:1]
            mine = played_so(known, config(length, seed, args), temperature, stops, chunk)
            return mine, await runners(stack, mine, server.url, url, len(VLM_WORDS))

        yield begin


@pytest.mark.parametrize("temperature", [GREEDY, SEEDED])
async def test_cut_at_every_token_and_moved_it_is_the_same_trajectory(relay: Relay, temperature: float) -> None:
    """With images in the prompt, in the first observation and in every later one."""
    whole = await uninterrupted(*await relay(temperature, images=2))
    generated = int(whole.loss_mask.sum())
    assert generated > 1
    if temperature == SEEDED:  # the greedy model may go in circles, and end at a turn's limit
        assert (whole.next_turn, len(whole.images)) == (TURNS, 2 * TURNS + 1)

    places = [await relay(temperature, images=2) for _ in range(1, generated)]
    cut = await asyncio.gather(*(cut_after(n, *place) for n, place in enumerate(places, 1)))

    for sample in cut:
        assert_same(sample, whole)


async def test_a_prompt_is_read_as_it_was_sent_and_its_earlier_turns_from_the_cache(
    relay: Relay, blunt_vlm: Path
) -> None:
    """By a server that would read another number of tokens, had it written the prompt out and tokenised it anew."""
    rollout, runners = await relay(SEEDED, images=2)
    read: list[tuple[int, int, int]] = []
    generate = runners[0].fleet.generate

    async def noted(session: str, ids: Any, sampling: Any, **named: Any) -> Any:
        answer = await generate(session, ids, sampling, **named)
        read.append((len(ids), answer.prompt_tokens, answer.cached_tokens))
        return answer

    runners[0].fleet.generate = noted  # type: ignore[method-assign]
    whole = await uninterrupted(rollout, runners)

    assert len(read) >= TURNS
    assert all(sent == seen for sent, seen, _ in read)
    assert all(cached >= before for (before, _, _), (_, _, cached) in itertools.pairwise(read)), read
    text = rollout.chat.decode(whole.tokens, special=True)
    of_server = AutoTokenizer.from_pretrained(blunt_vlm)
    assert len(rollout.chat.tokenizer.encode(text)) == len(whole.tokens) != len(of_server.encode(text))


async def test_aborted_at_any_moment_and_moved_it_is_the_same_trajectory(relay: Relay) -> None:
    chance = random.Random(7)
    for seed in range(20):  # a short trajectory is over before anybody aborts it
        whole = await uninterrupted(*await relay(SEEDED, length=LONG, seed=seed, images=1))
        if (whole.next_turn, int(whole.loss_mask.sum()) > LONG) == (TURNS, True):
            break
    assert int(whole.loss_mask.sum()) > LONG

    places = [await relay(SEEDED, chance.choice([2, 5, 2048]), LONG, seed, images=1) for _ in range(RELAYS)]
    ended = await asyncio.gather(*(aborted_at_random(chance, *place) for place in places))

    for sample, _ in ended:
        assert_same(sample, whole)
    assert sum(cuts for _, cuts in ended) >= RELAYS / 2


@pytest.mark.parametrize("images", [1, 2, 5])
async def test_engine_and_trainer_agree_on_log_probs(
    relay: Relay, vlm_sglang: EngineServer, tiny_vlm: Path, tmp_path: Path, images: int
) -> None:
    """Over several turns, after the trainer's own weights were published; the trainer reads images from the buffer."""
    with process_group(0, 1, f"file://{tmp_path}/rendezvous", CPU, 60.0):
        policy = moved(load_policy(ModelConfig(path=str(tiny_vlm)), CPU))
        folders = WeightFolders(tmp_path / "weights", policy, torch.float32, str(tiny_vlm))
        folders.write(VERSION)
        rollout, (runner, _) = await relay(SEEDED, images=images)
        await serve_version(vlm_sglang.url, folders.path(VERSION))
        samples = await played(rollout, runner)
        data = await runner.buffer.load_images([name for sample in samples for name in sample.images])

        groups = [Group(0, VERSION.step, samples)]
        pictures = Pictures.of(rollout.config, policy, lambda names: {name: data[name] for name in names})
        flat = pictures.shown(flatten(groups, trainer_version=VERSION.step, max_staleness=0), groups)
        passes = plan_passes(flat.lengths, 4096, packed=policy.packed)
        batches = micro_batches(flat, np.zeros(len(flat.tokens), np.float32), passes, packed=policy.packed)
        with torch.no_grad():
            differences = torch.cat([(policy(batch)[0] - batch.rollout_log_probs).abs() for batch in batches])

    assert max(sample.next_turn for sample in samples) == TURNS
    assert (float(differences.mean()) < 1e-4, float(differences.max()) < 1e-3) == (True, True), differences


def moved(policy: Policy) -> Policy:
    """With other weights than the model's files have."""
    with torch.no_grad():
        for number, parameter in enumerate(policy.parameters()):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.to_local().add_(0.02 * noise)  # type: ignore[attr-defined]
    return policy


async def played(rollout: Rollout, runner: Runner) -> list[Sample]:
    """Four samples, played at the same time."""
    episodes = [(await runner.take(rollout))[0] for _ in range(4)]
    await asyncio.gather(*(episode.run() for episode in episodes))
    return [episode.sample for episode in episodes]
