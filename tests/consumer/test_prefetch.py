"""What a rank reads beside its training: the groups that a step would take now, its own shard of them."""

from __future__ import annotations

import contextlib

import pytest
from rollout_source import play
from trainer_runs import Run

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.config import Config, RolloutConfig
from stream_rl.consumer.batching import shard
from stream_rl.consumer.prefetch import Prefetch
from stream_rl.errors import BufferUnavailable
from stream_rl.sample import WeightVersion


@pytest.fixture
def played(config: Config, buffer_url: str) -> Run:
    """A run whose producer has completed all groups of the first step."""
    run = Run(config, buffer_url)
    run.open()
    run.ask(lambda buffer: _complete_a_step(buffer, config.rollout))
    return run


async def _complete_a_step(buffer: TrajectoryBuffer, rollout: RolloutConfig) -> None:
    await buffer.claim_trainer()
    await buffer.engine_joined("engine-0", "http://nowhere", 1)
    await buffer.engine_serving("engine-0", WeightVersion(0))
    await buffer.heartbeat("player", 60.0)
    for sample in await buffer.lease("player", rollout.groups_per_step * rollout.group_size):
        await play(buffer, sample, WeightVersion(0))


def read(run: Run, rank: int, ranks: int, groups: int) -> list[int]:
    """The groups that a rank reads, in order."""
    prefetch = Prefetch(
        lambda: TrajectoryBuffer.of(run.config, run.url), groups=groups, mini_batches=1, rank=rank, ranks=ranks
    )
    with contextlib.closing(prefetch):
        assert prefetch.collect() == {}
        prefetch.begin()
        found = prefetch.collect()
        assert prefetch.collect() == {}
    return list(dict.fromkeys(finished.sample.group_index for finished in found.values()))


def test_one_rank_reads_what_a_step_would_take(played: Run) -> None:
    groups = played.config.rollout.groups_per_step
    assert read(played, 0, 1, groups) == played.ask(lambda buffer: buffer.ready_groups(groups))
    assert len(read(played, 0, 1, 1)) == 1


def test_ranks_read_their_own_shards_once_a_step_is_complete(played: Run) -> None:
    groups = played.config.rollout.groups_per_step
    ready = played.ask(lambda buffer: buffer.ready_groups(groups))
    sizes = played.ask(lambda buffer: buffer.group_bytes(ready))
    for rank in (0, 1):
        assert read(played, rank, 2, groups) == [ready[place] for place in shard(sizes, 1, rank, 2)[0]]
    assert read(played, 0, 2, 10 * groups) == []


def test_what_cannot_be_read_ahead_is_left_to_the_load(caplog: pytest.LogCaptureFixture) -> None:
    async def refused() -> TrajectoryBuffer:
        raise BufferUnavailable("nobody there")

    with contextlib.closing(Prefetch(refused, groups=1, mini_batches=1, rank=0, ranks=1)) as prefetch:
        prefetch.begin()
        assert prefetch.collect() == {}
    assert "nothing was read ahead, the load reads it all: BufferUnavailable: nobody there" in caplog.text
