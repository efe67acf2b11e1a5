"""What a producer's process holds for many long samples alive at once, and what Redis holds for each of their tokens.

The samples are written into the buffer by one process and given back; the producer under measure leases them all, reads
their journals, and holds them as it does while it plays: the sample, its joined response, and the copy of every record
that a Redis which lost some would get again.
"""

from __future__ import annotations

import asyncio
import os
import resource
from functools import partial

import numpy as np
from contenders.ours import RULES, RUN, Ours
from contenders.payload import turn
from contenders.process import Remote, memory
from rich.table import Table

from measures.bars import Bar
from stream_rl.buffer import RunRules, SampleStart, TrajectoryBuffer
from stream_rl.buffer.records import LeasedSample
from stream_rl.producer.journal import BufferJournal
from stream_rl.sample import Sample

TURNS, TOKENS = 32, 32768
PRODUCER_GIB = 1.5
LEASE = 64
REDIS_BYTES_PER_TOKEN = 13.0


class HeldSamples:
    """The producer's process: leases samples and keeps them alive."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._held: list[tuple[Sample, BufferJournal]] = []

    def hold(self, count: int) -> tuple[int, int]:
        """Leases `count` samples; bytes that the process holds then, and the most it ever held."""
        asyncio.run(self._hold(count))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return memory([os.getpid()]), peak

    async def _hold(self, count: int) -> None:
        async with await TrajectoryBuffer.connect(self._url, RUN) as buffer:
            await buffer.heartbeat("holder", 600.0)
            while len(self._held) < count:
                leased = await buffer.lease("holder", min(LEASE, count - len(self._held)))
                self._held += [(_rebuilt(one), BufferJournal(buffer, one, "none")) for one in leased]


def _rebuilt(leased: LeasedSample) -> Sample:
    sample_id, start = leased.lease.sample_id, leased.start
    assert start is not None
    sample = Sample(sample_id.group, sample_id.index, start.prompt, start.prompt_tokens)
    for one in leased.turns:
        sample.append(one)
    assert len(sample.response) == TOKENS  # joined once, as before every request
    return sample


async def _fill(url: str, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    turns = [turn(index, TOKENS // TURNS, random) for index in range(TURNS)]
    records = [SampleStart("a prompt", np.arange(64, dtype=np.int32)), *turns]
    async with await TrajectoryBuffer.connect(url, RUN) as buffer:
        await buffer.open_run(RunRules(RULES.groups_per_step, RULES.group_size, run_ahead=count))
        await buffer.heartbeat("filler", 600.0)
        leased: list[LeasedSample] = []
        while len(leased) < count:
            more = await buffer.lease("filler", min(LEASE, count - len(leased)))
            await asyncio.gather(*(buffer.commit(one.lease, 0, records) for one in more))
            leased += more
        await buffer.release([one.lease for one in leased])


def measure(ours: Ours, count: int, seed: int) -> tuple[Table, list[Bar], dict[str, float]]:
    """Fills a fresh buffer with `count` unfinished samples, and lets one producer hold them."""
    before = memory(ours.brokers())
    asyncio.run(_fill(ours.server.url, count, seed))
    per_token = (memory(ours.brokers()) - before) / (count * TOKENS)
    producer = Remote(partial(HeldSamples, ours.server.url))
    held, peak = producer.call("hold", count).answer
    producer.kill()
    figures = {
        "samples": count,
        "producer_bytes": held,
        "producer_peak_bytes": peak,
        "redis_bytes_per_token": per_token,
    }
    shown = Table("what", "measured", title=f"Memory with {count:,} live samples of {TOKENS // 1024}k tokens")
    shown.add_row("the producer's process", f"{held / 2**30:.2f} GiB, {peak / 2**30:.2f} GiB at most")
    shown.add_row("Redis, bytes a token", f"{per_token:.2f}")
    bars = [Bar(f"GiB of a producer that holds {count:,} samples", [peak / 2**30], most=PRODUCER_GIB)]
    bars.append(Bar("Redis bytes a token", [per_token], most=REDIS_BYTES_PER_TOKEN))
    return shown, bars, figures
