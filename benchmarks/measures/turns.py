"""Turn commits of one long episode: what a turn costs, whether it grows, and what is written for it.

Ways to make a turn durable, one episode each in every round:
    ours        `commit` of the turn's record: leased, fenced, appended
    plain       the same bytes by a plain RPUSH, encoded beforehand, without lease or fence: what no append can undercut
    rewriting   the whole trajectory so far, joined and encoded by our codec, by a plain SET without lease or fence
    tq-1        a row of TransferQueue for the turn, since it cannot append
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from contenders.on_ray import tensors
from contenders.ours import OUTCOME, RUN, Ours
from contenders.payload import BYTES_PER_TOKEN, payload, turn
from redis.asyncio import Redis
from rich.table import Table

from measures.bars import Bar, ratios
from stream_rl.buffer import SampleStart, TrajectoryBuffer, codec
from stream_rl.sample import Turn, VersionSpan, WeightVersion

TURNS, LONG, TOKENS = 32, 100, 1024
START = SampleStart("a prompt", np.arange(64, dtype=np.int32))
ENDS = 10

Seconds = list[float]
"""One figure a turn."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Seconds a turn, by contender and round, for episodes of TURNS and (ours) of LONG turns; bytes of one episode."""

    episodes: dict[str, list[Seconds]]
    long: list[Seconds]
    written: int
    arrays: int

    def bars(self) -> list[Bar]:
        """The claims about turns."""
        totals = {name: [sum(episode) for episode in rounds] for name, rounds in self.episodes.items()}
        last = {name: [statistics.median(e[-4:]) for e in rounds] for name, rounds in self.episodes.items()}
        growth = [statistics.median(e[-ENDS:]) / statistics.median(e[:ENDS]) for e in self.long]
        made = [
            Bar(f"turn {TURNS}: rewriting / ours, seconds", ratios(last["rewriting"], last["ours"]), 5.0),
            Bar(f"turn {TURNS}: rewriting / plain RPUSH, seconds", ratios(last["rewriting"], last["plain"])),
            Bar(f"turn {LONG} / turn 1, seconds", growth, most=1.2),
            Bar("bytes written / payload", [self.written / (TURNS * TOKENS * BYTES_PER_TOKEN)], most=1.05),
            Bar("bytes written / arrays that are not constant", [self.written / self.arrays], most=1.05),
        ]
        if "tq-1" in totals:
            made.append(Bar("turns/s, ours / tq-1", ratios(totals["tq-1"], totals["ours"]), 20.0))
        return made

    def table(self) -> Table:
        """Milliseconds a turn."""
        shown = Table(
            "contender", "ms a turn", "at turn 1", f"at turn {TURNS}", "turns/s",
            title=f"Turn commits: {TURNS} turns of {TOKENS} tokens, one at a time",
        )  # fmt: skip
        for name, rounds in self.episodes.items():
            mean = statistics.median(statistics.fmean(episode) for episode in rounds)
            ends = [statistics.median(x for e in rounds for x in part(e)) for part in (_first, _last)]
            shown.add_row(name, *(f"{1000 * x:.3f}" for x in (mean, *ends)), f"{1 / mean:,.0f}")
        shown.caption = (
            f"ours wrote {self.written:,} bytes for {self.arrays:,} bytes of arrays "
            f"({TURNS * TOKENS * BYTES_PER_TOKEN:,} with a mask and a version for every token)"
        )
        return shown


def _first(episode: Seconds) -> Seconds:
    return episode[:4]


def _last(episode: Seconds) -> Seconds:
    return episode[-4:]


async def measure(ours: Ours, rounds: int, seed: int, queue: Any = None) -> Turns:
    """Runs the episodes; `queue` is a TransferQueue client, or None where it does not take part."""
    random = np.random.default_rng(seed)
    turns = [turn(index, TOKENS, random) for index in range(LONG)]
    async with await TrajectoryBuffer.connect(ours.server.url, RUN) as buffer, Redis.from_url(ours.server.url) as redis:
        await buffer.heartbeat("turns", 600.0)
        before = ours.disk_bytes()
        await _commit(buffer, turns[:TURNS])
        written = ours.disk_bytes() - before
        episodes: dict[str, list[Seconds]] = {"ours": [], "plain": [], "rewriting": []}
        if queue:
            episodes["tq-1"] = []
        long = []
        for number in range(rounds + 1):
            ran = {
                "ours": await _commit(buffer, turns[:TURNS]),
                "plain": await _append(redis, turns[:TURNS]),
                "rewriting": await _rewrite(redis, turns[:TURNS]),
            }
            if queue:
                ran["tq-1"] = _put(queue.put, turns[:TURNS])
                queue.clear_partition("turns")
            hundred = await _commit(buffer, turns)
            if number:  # the first is not counted
                long.append(hundred)
                for name, seconds in ran.items():
                    episodes[name].append(seconds)
    arrays = sum(a.nbytes for t in turns[:TURNS] for a in (t.generated, t.log_probs, t.observation))
    return Turns(episodes, long, written, arrays)


async def _commit(buffer: TrajectoryBuffer, turns: list[Turn]) -> Seconds:
    (leased,) = await buffer.lease("turns", 1)
    await buffer.commit(leased.lease, 0, [START])
    seconds = []
    for place, one in enumerate(turns, 1):
        began = time.perf_counter()
        await buffer.commit(leased.lease, place, [one])
        seconds.append(time.perf_counter() - began)
    await buffer.commit(leased.lease, len(turns) + 1, [], OUTCOME)
    return seconds


async def _append(redis: Redis, turns: list[Turn]) -> Seconds:
    seconds = []
    for encoded in map(codec.encode, turns):
        began = time.perf_counter()
        await redis.rpush("appended", encoded)  # type: ignore[misc]
        seconds.append(time.perf_counter() - began)
    await redis.unlink("appended")
    return seconds


async def _rewrite(redis: Redis, turns: list[Turn]) -> Seconds:
    seconds = []
    for end in range(1, len(turns) + 1):
        began = time.perf_counter()
        await redis.set("rewritten", codec.encode(_joined(turns[:end])))
        seconds.append(time.perf_counter() - began)
    return seconds


def _joined(turns: list[Turn]) -> Turn:
    """A trajectory as one record: generated and observed tokens, each end to end."""
    length = sum(len(one.generated) for one in turns)
    return Turn(
        0, np.concatenate([one.generated for one in turns]), np.concatenate([one.log_probs for one in turns]),
        np.concatenate([one.observation for one in turns]), (VersionSpan(0, length, WeightVersion(0)),),
    )  # fmt: skip


def _put(put: Callable[..., object], turns: list[Turn]) -> Seconds:
    seconds = []
    for one in turns:
        data = tensors([payload([one]).columns()])
        began = time.perf_counter()
        put(data, partition_id="turns")
        seconds.append(time.perf_counter() - began)
    return seconds
