"""Prefixes are shared freely where updates flush the cache, and by group where they do not."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from prometheus_client import REGISTRY
from rollouts import halving
from test_worker import ScriptedFleet, train

from stream_rl.engine.generation import Generation
from stream_rl.producer.cache_scope import CacheScope
from stream_rl.producer.worker import Producer
from stream_rl.sample import VersionSpan, WeightVersion


def generation(cached: int, *steps: int) -> Generation:
    """Two tokens of each version."""
    spans = tuple(VersionSpan(2 * n, 2 * n + 2, WeightVersion(step)) for n, step in enumerate(steps))
    return Generation(np.zeros(2 * len(steps)), np.zeros(2 * len(steps)), spans, "stop", cached_tokens=cached)


@pytest.mark.parametrize(
    ("answer", "older"),
    [
        (generation(9, 4), 0),
        (generation(0, 5), 0),
        (generation(9, 5), 2),
        (generation(0, 4, 5), 2),
        (generation(0, 4, 5, 6), 4),
        (generation(9, 5, 6), 4),
        (generation(9), 0),
    ],
)
def test_what_may_come_from_an_older_cache_is_counted_and_nothing_else(answer: Generation, older: int):
    assert CacheScope("k", 4).older(answer) == older


class KeyedFleet(ScriptedFleet):
    """Keeps the keys that it is asked with, and answers from a cache, as version 1."""

    def __init__(self) -> None:
        super().__init__(halving)
        self.version = WeightVersion(1)
        self.keys: dict[str, set[str | None]] = {}

    async def generate(self, session_id, input_ids, sampling, *, images=None, rid=None, extra_key=None):
        self.keys.setdefault(session_id.partition("-")[0], set()).add(extra_key)
        answer = await super().generate(session_id, input_ids, sampling, rid=rid)
        return Generation(answer.tokens, answer.log_probs, answer.spans, answer.finish_reason, cached_tokens=1)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_each_group_has_a_cache_of_its_own_in_place_and_there_alone(rollout, open_buffer, mode):
    def counted() -> float:
        return REGISTRY.get_sample_value("stream_rl_older_cache_tokens_total") or 0.0

    loaded = rollout(**{"engine.pause_mode": mode, "trainer.steps": 1, "producer.lease_seconds": 0.3})
    buffer, fleet, before = await open_buffer(loaded.config), KeyedFleet(), counted()
    playing = asyncio.create_task(Producer(loaded, buffer, fleet, "p").run(asyncio.Event()))
    samples = await train(buffer, steps=1)
    await asyncio.wait_for(playing, 10)

    name = loaded.config.name
    in_place = mode == "in_place"
    assert fleet.keys == {group: {f"{name}/{group}/0" if in_place else None} for group in ("0", "1")}
    generated = sum(int(sample.loss_mask.sum()) for sample in samples)
    assert counted() - before == (generated if in_place else 0)
