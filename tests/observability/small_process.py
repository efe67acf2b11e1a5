"""`python small_process.py ROLE FOLDER URL`: a supervisor, producer or trainer with nothing in it but what is counted.

They do to the buffer and to the run folder what the real ones do, by the same classes; they play no episodes, generate
nothing and train nothing. The run ends when the buffer says so.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stream_rl.buffer import Outcome, ProcessRecord, RunSnapshot, RunState, SampleStart, TrajectoryBuffer, Waiting
from stream_rl.config import Config
from stream_rl.errors import JournalMismatch, LeaseLost
from stream_rl.metrics.exporter import serve_metrics
from stream_rl.metrics.turn_log import JsonLines
from stream_rl.producer.journal import BufferJournal
from stream_rl.recording import RunRecorder
from stream_rl.sample import StopReason, Turn, VersionSpan, WeightVersion

START = SampleStart("guess", np.array([5, 6], np.int32))
PARTS = ("wait", "load", "train", "publish", "checkpoint", "pack", "forward_backward", "optimizer")
TURN_SECONDS = 0.2
"""The longest turn: Prometheus knows of a process five seconds after its start, and has to see most of its life."""


class Quiet:
    """A progress that shows nothing."""

    def update(self, snapshot: RunSnapshot, steps: Sequence[Mapping[str, Any]]) -> None:
        """Nothing."""

    def say(self, line: str) -> None:
        """Nothing."""


async def supervise(config: Config, buffer: TrajectoryBuffer) -> None:
    """Watches and writes down, as the supervisor does, and shows it until it is killed."""
    await RunRecorder(config, buffer, Quiet()).watch()


async def produce(config: Config, buffer: TrajectoryBuffer, name: str) -> None:
    """Commits turns of what it leases, in any order, until the run is finished."""
    log = JsonLines(config.folder / "turns" / f"{name}.jsonl")
    while await buffer.heartbeat(name, 0.6) is RunState.RUNNING:
        leased = await buffer.lease(name, 8)
        await asyncio.gather(*(_play(BufferJournal(buffer, sample, "guess_number", log), sample) for sample in leased))
        await asyncio.sleep(0.02)


async def _play(journal: BufferJournal, sample: Any) -> None:
    chance = random.Random()
    turns = [turn.index + turn.complete for turn in sample.turns]
    try:
        if chance.random() < 0.05:
            await journal.fail(StopReason.ENV_FAILURE, "the world is gone")
            return
        for index in range(turns[-1] if turns else 0, 4):
            records = [_turn(index, chance.randint(1, 9))]
            if sample.start is None and index == 0:
                records.insert(0, START)
            ends = index == 3 or chance.random() < 0.3
            reason = StopReason.MAX_TURNS if index == 3 else StopReason.ENV_DONE
            await journal.commit(records, Outcome(reason.status, reason, chance.randint(0, 4) / 4) if ends else None)
            await asyncio.sleep(chance.uniform(0.0, TURN_SECONDS))
            if ends:
                return
    except (LeaseLost, JournalMismatch):
        return


def _turn(index: int, tokens: int) -> Turn:
    span = (VersionSpan(0, tokens, WeightVersion(0)),)
    generated, zeros = np.arange(tokens, dtype=np.int32), np.zeros(tokens, np.float32)
    return Turn(index, generated, zeros, np.array([3], np.int32), span, timings={"generate": 0.01, "env_step": 0.001})


async def train(config: Config, buffer: TrajectoryBuffer) -> None:
    """Takes every step, from the first: without a checkpoint a restarted trainer replays all of the ledger."""
    claim = await buffer.claim_trainer()
    steps = JsonLines(config.folder / "steps.jsonl")
    for step in range(1, config.trainer.steps + 1):
        while isinstance(entry := await buffer.take_step(claim, step), Waiting):
            await asyncio.sleep(0.02)
        if step > claim.ledger_steps:
            await buffer.engine_serving("engine-0", WeightVersion(step, claim.incarnation))
        steps.append(_step(config, step, entry.groups, replayed=step <= claim.ledger_steps))
    await buffer.finish_run()


def _step(config: Config, step: int, groups: Sequence[int], *, replayed: bool) -> dict[str, Any]:
    samples = len(groups) * config.rollout.group_size
    lag = {"tokens": 10 * len(groups), "ratio_mean": 1.0, "clip_share": 0.0, "engine_trainer_kl": 0.0,
           "effective_sample_size": 1.0}  # fmt: skip
    return {
        "step": step, "time": time.time(), "replayed": replayed, "groups": list(groups), "group_v0": [0] * len(groups),
        "sample_lags": [0.5] * samples, "multi_version_samples": 1, "by_lag": {"0": lag, "1": lag},
        "masked_by_length": {"0-256": 2}, "wait_reasons": {"lag_rule": 0.25}, "oldest_group_length": 9,
        "response_length_max": 40, "reward_mean": 0.5, "loss": 0.1, "entropy": 1.0, "grad_norm": 0.5,
        "log_prob_difference": 1e-7, "correction_share": 0.0, "group_lag_max": 1,
        **{f"{part}_seconds": 0.125 for part in PARTS},
    }  # fmt: skip


async def main(role: str, folder: Path, url: str) -> None:
    """Registers, and plays its role."""
    kind = role.partition("-")[0]
    config = Config.load(folder / "config.yaml")
    async with await TrajectoryBuffer.of(config, url) as buffer:
        metrics_url = serve_metrics(config.metrics.host)
        record = ProcessRecord(role, kind, socket.gethostname(), os.getpid(), metrics_url)  # type: ignore[arg-type]
        await buffer.register_process(record)
        if kind == "supervisor":
            await supervise(config, buffer)
        elif kind == "producer":
            await produce(config, buffer, role)
        else:
            await train(config, buffer)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
