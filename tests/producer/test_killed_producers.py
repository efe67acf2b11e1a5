"""Producers that are killed in the middle of episodes with pictures: whoever goes on, it comes out the same.

Producers are processes of their own here, ended by SIGKILL; buffer and requests are real, the engine writes what
follows from the ids before.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import multiprocessing
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis.asyncio
from relays import assert_same
from rollouts import run_config

from stream_rl.buffer import EmbeddedServer, TrajectoryBuffer, Waiting
from stream_rl.config import Config, MultimodalConfig
from stream_rl.metrics.turn_log import read
from stream_rl.models.tiny_vlm import FRAME, VLM_WORDS
from stream_rl.multimodal.family import Family, load_family
from stream_rl.multimodal.reading import read_image
from stream_rl.producer.worker import run_producer
from stream_rl.sample import Sample, SampleId, WeightVersion
from stream_rl.testing import FakeEngineServer, Latency

WORDS = [VLM_WORDS.index(word) for word in ("up", "down", "left", "right", "go", "where")]
END = VLM_WORDS.index("<|im_end|>")
LENGTH, TURNS, KILLS = 6, 5, 3
DEADLINE = 120.0


def following(prompt: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Words by the ids before them; each turn has LENGTH, wherever it was cut."""
    ids = list(prompt)
    while True:
        said = next((n for n, token in enumerate(reversed(ids)) if token not in WORDS), len(ids))
        digest = hashlib.blake2b(np.array(ids, np.int64).tobytes(), digest_size=2).digest()
        token = END if said >= LENGTH - 1 else WORDS[digest[0] % len(WORDS)]
        ids.append(token)
        yield token, -(digest[1] + 1) / 64


def produce(config: Config, name: str, buffer_url: str) -> None:
    """The life of a producer's process."""
    asyncio.run(run_producer(config, producer_id=name, buffer_url=buffer_url, stop=asyncio.Event()))


@pytest.fixture
def family(tiny_vlm: Path) -> Family:
    found = load_family(str(tiny_vlm))
    assert found is not None
    return found


@pytest.fixture
def config(tiny_vlm: Path, tmp_path: Path) -> Callable[[str], Config]:
    """`config(name)`: two groups of two, whose every turn shows pictures and is committed in chunks."""
    side = FRAME["qwen2_5_vl" if "2.5" in tiny_vlm.name else "qwen3_vl"]

    def make(name: str) -> Config:
        return run_config(tmp_path / name, tiny_vlm, {
            "environment.path": "picture_env", "environment.args": {"side": side, "first": True, "images": 2},
            "rollout.max_turns": TURNS, "rollout.commit_every_tokens": 2, "rollout.max_context_len": 1024,
            "rollout.max_response_len": 900, "producer.lease_seconds": 1.0, "trainer.steps": 1,
        })  # fmt: skip

    return make


async def samples_of(buffer: TrajectoryBuffer) -> dict[SampleId, Sample]:
    """What a trainer reads of the run's only step; then the run is over."""
    claim = await buffer.claim_trainer()
    async with asyncio.timeout(DEADLINE):
        while isinstance(entry := await buffer.take_step(claim, 1), Waiting):
            await asyncio.sleep(0.02)
    samples = [sample for group in await buffer.load_groups(entry.groups) for sample in group.samples]
    await buffer.finish_run()
    return {sample.sample_id: sample for sample in samples}


async def ended(producer: Any) -> int:
    """Waits for a process; its exit code."""
    await asyncio.to_thread(producer.join, DEADLINE)
    return int(producer.exitcode)


@pytest.mark.parametrize("tiny_vlm", ["tiny-vlm"], indirect=True)
async def test_killed_in_the_middle_of_its_episodes_they_come_out_the_same(
    config: Callable[[str], Config], open_buffer: Any, server: EmbeddedServer, family: Family
) -> None:
    chance, latency = random.Random(5), Latency(prefill=0.02, token=0.02)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stream_rl.producer.worker", "transformers"])
    async with FakeEngineServer(
        following, vocab_size=len(VLM_WORDS), features=lambda url: features(url, family), latency=latency
    ) as engine:

        async def begun(name: str) -> tuple[Config, TrajectoryBuffer]:
            run = config(name)
            buffer = await open_buffer(run)
            await buffer.engine_joined("engine-0", engine.url, 1)
            await buffer.engine_serving("engine-0", WeightVersion(0))
            return run, buffer

        def start(run: Config, producer: str) -> Any:
            process = context.Process(target=produce, args=(run, producer, server.url), daemon=True)
            process.start()
            return process

        run, buffer = await begun("whole")
        producer = start(run, "alone")
        whole = await samples_of(buffer)
        assert await ended(producer) == 0

        run, buffer = await begun("killed")
        for number in range(KILLS):
            held = (await buffer.snapshot()).committed_turns
            producer = start(run, f"killed-{number}")
            async with asyncio.timeout(DEADLINE):
                while (await buffer.snapshot()).committed_turns < held + 3:
                    assert producer.is_alive()
                    await asyncio.sleep(0.005)
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            producer.kill()
            assert await ended(producer) == -9
        producer = start(run, "last")
        killed = await samples_of(buffer)
        assert await ended(producer) == 0

    assert killed.keys() == whole.keys()
    for name, sample in killed.items():
        assert (sample.next_turn, len(sample.images)) == (TURNS, 2 * TURNS + 1)
        assert_same(sample, whole[name])
    assert moved(run) >= KILLS
    await assert_stored_once(server, run.name, killed.values())


def features(url: str, family: Family) -> int:
    """How many tokens an image of a request is to the model."""
    _, height, width = read_image(url, MultimodalConfig())
    return family.tokens_of(height, width)


def moved(run: Config) -> int:
    """How many samples have turns that different producers committed."""
    by = [(str(line["sample"]), path.stem) for path in (run.folder / "turns").glob("*.jsonl") for line in read(path)]
    players = itertools.groupby(sorted(set(by)), key=lambda pair: pair[0])
    return sum(len(list(pairs)) > 1 for _, pairs in players)


async def assert_stored_once(server: EmbeddedServer, run: str, samples: Any) -> None:
    """One key for each picture, which holds its bytes once."""
    client = redis.asyncio.from_url(server.url)
    keys = [key.decode() async for key in client.scan_iter(match=f"stream_rl:{{{run}}}:image:*", count=10_000)]
    kept = sorted(key.rpartition(":")[2] for key in keys)
    sizes = [await client.strlen(key) for key in keys]
    await client.aclose()
    assert kept == sorted({name for sample in samples for name in sample.images})
    assert min(sizes) > 0
