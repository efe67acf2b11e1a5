"""A rank that is killed: the others end within a deadline, whoever looks is told who was first, and the run goes on."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection

import pytest
import torch
from trainer_runs import Run

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.consumer.trainer import run_trainer
from stream_rl.errors import ProcessDied, RankLost
from stream_rl.rank_failures import CAUSE_SECONDS, all_ranks

DEADLINE = 120.0
NOTICED = 1.0
"""Seconds until a death is known: longer than a broken connection takes."""

_starts = itertools.count()
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["stream_rl.consumer.trainer"])


@pytest.fixture
def run(config: Config, buffer_url: str) -> Run:
    """Two ranks, whose collectives would wait for half an hour."""
    tree = config.model_dump()
    tree["trainer"] |= {"world_size": 2, "collective_timeout": 1800.0, "steps": 8}
    run = Run(Config.parse(tree), buffer_url)
    run.config.folder.mkdir()
    run.open()
    return run


def train(run: Run, rank: int, store: str, sender: Connection) -> None:
    torch.set_num_threads(1)
    try:
        run_trainer(run.config, rank=rank, world_size=2, init_method=f"file://{store}", buffer_url=run.url)
    except RankLost as error:
        sender.send(str(error))


async def live(run: Run, rank: int, store: str) -> None:
    """A rank in a process of its own, whose end is told as launch.py tells it."""
    receiver, sender = _processes.Pipe(duplex=False)
    process = _processes.Process(target=train, args=(run, rank, store, sender))
    process.start()
    try:
        while process.is_alive():
            await asyncio.sleep(0.02)
        if process.exitcode == 0 and not receiver.poll():
            return
        if receiver.poll():
            raise RankLost(receiver.recv())
        await asyncio.sleep(NOTICED)
        raise ProcessDied(f"ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()


async def train_and_kill(run: Run, rank: int | None = None, step: int = 0) -> None:
    """Both ranks, of which one is killed once a step is taken."""
    store = f"{run.config.folder}/store-{next(_starts)}"
    training = asyncio.create_task(all_ranks([live(run, number, store) for number in (0, 1)]))
    if rank is not None:
        async with await TrajectoryBuffer.of(run.config, run.url) as buffer, asyncio.timeout(DEADLINE):
            while (now := await buffer.snapshot()).ledger_steps < step:
                await asyncio.sleep(0.01)
        os.kill(next(known.pid for known in now.processes if known.name == f"trainer-{rank}"), signal.SIGKILL)
    await training


@pytest.mark.timeout(600)
def test_a_killed_rank_ends_the_other_in_time_and_is_what_is_told(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with run.rollouts():
        for rank, step in ((1, 2), (0, 4)):
            started = time.monotonic()
            with pytest.raises(ProcessDied, match=f"rank {rank}: ended with -9"):
                asyncio.run(train_and_kill(run, rank, step))
            assert time.monotonic() - started < DEADLINE + CAUSE_SECONDS
        asyncio.run(train_and_kill(run))
    last = {line["step"]: line["groups"] for line in run.lines()}
    assert sorted(last) == list(range(1, 9))
    groups = [group for trained in last.values() for group in trained]
    assert len(groups) == len(set(groups)) == run.snapshot().trained
