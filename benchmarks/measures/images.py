"""Groups whose siblings share their images, put and taken: each image once, or a copy with every sample.

ours       `put_images` once a group, commits that name them, `load_groups`, then `load_images` once a group
naive      every sample's record and images as one value, by a pipeline of SETs and one of GETs
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from contenders.ours import OUTCOME, RULES, RUN, STEP, Ours
from contenders.payload import turn
from redis.asyncio import Redis
from rich.table import Table

from measures.bars import Bar, ratios
from stream_rl.buffer import LeasedSample, SampleStart, TrajectoryBuffer, Waiting, codec
from stream_rl.sample import Group, Turn, WeightVersion

IMAGES, IMAGE_BYTES = 4, 512 * 1024
TOKENS = 1024
START = SampleStart("a prompt", np.arange(64, dtype=np.int32))


class Moved(NamedTuple):
    """One step's groups: seconds from first put to last image in hand, and bytes through the server's socket."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Shared:
    """Rounds of both ways."""

    ours: list[Moved]
    naive: list[Moved]

    def bars(self) -> list[Bar]:
        """The claims about shared images."""
        size = RULES.group_size
        return [
            Bar(
                f"images: bytes moved, naive / ours (of {size})",
                ratios([one.bytes for one in self.naive], [one.bytes for one in self.ours]), 0.9 * size,
            ),
            Bar(
                "images: groups/s, ours / naive",
                ratios([one.seconds for one in self.naive], [one.seconds for one in self.ours]), 5.0,
            ),
        ]  # fmt: skip

    def table(self) -> Table:
        """Medians."""
        shown = Table(
            "way", "groups/s", "MB moved a group",
            title=f"Groups of {RULES.group_size} with {IMAGES} images",
        )  # fmt: skip
        for name, rounds in (("ours", self.ours), ("naive", self.naive)):
            seconds, moved = (float(np.median(column)) for column in zip(*rounds, strict=True))
            groups = RULES.groups_per_step
            shown.add_row(name, f"{groups / seconds:,.0f}", f"{moved / groups / 1e6:.2f}")
        return shown


async def measure(ours: Ours, rounds: int, seed: int) -> Shared:
    """Rounds of a step's groups, each with images of its own."""
    random = np.random.default_rng(seed)
    shared = Shared([], [])
    record = turn(0, TOKENS, random)
    async with await TrajectoryBuffer.connect(ours.server.url, RUN) as buffer, Redis.from_url(ours.server.url) as redis:
        await buffer.heartbeat("images", 600.0)
        claim = await buffer.claim_trainer()
        for step in range(1, rounds + 2):
            images = [[random.bytes(IMAGE_BYTES) for _ in range(IMAGES)] for _ in range(RULES.groups_per_step)]
            before, began = await _traffic(redis), time.perf_counter()
            await _put(buffer, record, images)
            entry = await buffer.take_step(claim, step)
            assert not isinstance(entry, Waiting)
            await _load(buffer, await buffer.load_groups(entry.groups))
            mine = Moved(time.perf_counter() - began, await _traffic(redis) - before)
            await buffer.engine_serving("engine", WeightVersion(step))
            await buffer.checkpoints_kept(claim, step)
            copied = await _naive(redis, record, images)
            if step > 1:  # the first is not counted
                shared.ours.append(mine)
                shared.naive.append(copied)
    return shared


async def _put(buffer: TrajectoryBuffer, record: Turn, images: list[list[bytes]]) -> None:
    leased: list[LeasedSample] = []
    while len(leased) < STEP:
        leased += await buffer.lease("images", STEP - len(leased))
    by_group = dict(zip(sorted({one.lease.sample_id.group for one in leased}), images, strict=True))
    names = {group: await buffer.put_images(some) for group, some in by_group.items()}
    await asyncio.gather(
        *(
            buffer.commit(one.lease, 0, [START, replace(record, images=names[one.lease.sample_id.group])], OUTCOME)
            for one in leased
        )
    )


async def _load(buffer: TrajectoryBuffer, groups: list[Group]) -> None:
    for group in groups:
        names = [name for sample in group.samples for one in sample.turns for name in one.images]
        assert len(await buffer.load_images(names)) == IMAGES


async def _naive(redis: Redis, record: Turn, images: list[list[bytes]]) -> Moved:
    before, began = await _traffic(redis), time.perf_counter()
    keys = [(f"naive:{number}", images[number // RULES.group_size]) for number in range(STEP)]
    for start in range(0, STEP, RULES.group_size):
        async with redis.pipeline(transaction=False) as pipe:
            for key, some in keys[start : start + RULES.group_size]:
                pipe.set(key, b"".join([codec.encode(START), codec.encode(record), *some]))
            await pipe.execute()
    for start in range(0, STEP, RULES.group_size):
        async with redis.pipeline(transaction=False) as pipe:
            for key, _ in keys[start : start + RULES.group_size]:
                pipe.get(key)
            await pipe.execute()
    moved = Moved(time.perf_counter() - began, await _traffic(redis) - before)
    await redis.delete(*(key for key, _ in keys))
    return moved


async def _traffic(redis: Redis) -> int:
    stats = await redis.info("stats")
    return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])
