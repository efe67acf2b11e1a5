"""The pipeline under fire: the real producer loop, a plain trainer on the real buffer, an engine that only pretends.

    fake engine ◄── producer-0, producer-1 ──► embedded Valkey ◄── trainer ── trained.jsonl, checkpoints

The trainer trains nothing, but keeps the rules of one: it claims the run, replays the ledger after its checkpoint,
writes down what it was given, publishes only when it is level, and retires only what its oldest checkpoint covers.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from stream_rl.buffer import TrainerClaim, TrajectoryBuffer, Waiting
from stream_rl.config import Config
from stream_rl.errors import RecordsLost
from stream_rl.metrics.turn_log import JsonLines
from stream_rl.models.tiny_text import WORDS
from stream_rl.producer.worker import run_producer
from stream_rl.sample import Group, WeightVersion
from stream_rl.testing import FakeEngineServer, Latency

PRODUCERS = ("producer-0", "producer-1")
ENGINE = "engine"
LATENCY = Latency(token=0.015)
TRAIN_SECONDS = 0.03
POLL_SECONDS = 0.01
CHECKPOINT_EVERY = 3
CHECKPOINTS_KEPT = 3
"""The oldest must be longer ago than what a power cut takes: a trainer that dies with Redis begins at a step that the
ledger still has."""


def settings(run: Path, model: Path) -> dict[str, Any]:
    """A small guessing game: episodes of up to eight turns, groups of four, samples that come back after a second."""
    return {
        "run": str(run),
        "model": {"path": str(model)},
        "environment": {"path": "guess_number"},
        "rollout": {"groups_per_step": 4, "group_size": 4, "max_turns": 8, "max_turn_len": 4, "max_response_len": 256,
                    "max_context_len": 512},
        "producer": {"concurrency": 12, "lease_seconds": 1.0, "drain_seconds": 1.0},
        "trainer": {"steps": 1_000_000},
    }  # fmt: skip


def guesses(seed: int) -> Callable[[Sequence[int]], Iterator[tuple[int, float]]]:
    """Answers each prompt with a number that depends on the prompt alone, and the end token."""
    first, end = WORDS.index("1"), WORDS.index("<|im_end|>")

    def source(prompt: Sequence[int]) -> Iterator[tuple[int, float]]:
        digest = hashlib.blake2b(np.array([seed, *prompt], np.int64).tobytes(), digest_size=2).digest()
        return iter([(first + digest[0] % 8, -2.0), (end, -0.1)])

    return source


def serve_engine(seed: int, ready: Connection) -> None:
    """Runs the fake engine until the process is ended; sends its URL."""

    async def forever() -> None:
        async with FakeEngineServer(guesses(seed), vocab_size=len(WORDS), latency=LATENCY) as engine:
            ready.send(engine.url)
            await asyncio.Event().wait()

    asyncio.run(forever())


def produce(tree: dict[str, Any], producer_id: str, url: str) -> None:
    """A producer's process."""
    asyncio.run(run_producer(Config.parse(tree), producer_id=producer_id, buffer_url=url, stop=asyncio.Event()))


def train(tree: dict[str, Any], url: str, engine_url: str) -> None:
    """The trainer's process; ends when the run has trained all its groups."""
    asyncio.run(_train(Config.parse(tree), url, engine_url))


async def _train(config: Config, url: str, engine_url: str) -> None:
    checkpoints = Checkpoints(config.folder / "checkpoints")
    async with await TrajectoryBuffer.of(config, url) as buffer, aiohttp.ClientSession(engine_url) as engine:
        claim = await buffer.claim_trainer(checkpoints.ledger, checkpoints.covered)
        step, published = checkpoints.newest(at_most=claim.ledger_steps) + 1, -1
        with JsonLines(config.folder / "trained.jsonl") as log:
            while not await _over(buffer, config, step):
                if step > max(claim.ledger_steps, published + 1):
                    published = step - 1
                    await _publish(buffer, engine, WeightVersion(published, claim.incarnation))
                groups = await _load(buffer, claim, step)
                if groups is None:
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                replayed = step <= claim.ledger_steps
                about = {"step": step, "incarnation": claim.incarnation, "replayed": replayed, "time": time.time()}
                log.append({**about, **_content(groups)})
                await asyncio.sleep(TRAIN_SECONDS)
                if step % CHECKPOINT_EVERY == 0:
                    await buffer.checkpoints_kept(claim, checkpoints.write(step, buffer.ledger_tail()))
                step += 1
        await buffer.finish_run()


async def _publish(buffer: TrajectoryBuffer, engine: aiohttp.ClientSession, version: WeightVersion) -> None:
    update = {"model_path": "none", "weight_version": str(version)}
    (await engine.post("/update_weights_from_disk", json=update)).raise_for_status()
    await buffer.engine_serving(ENGINE, version)


async def _load(buffer: TrajectoryBuffer, claim: TrainerClaim, step: int) -> list[Group] | None:
    """The step's groups; None while they cannot be taken, or when Redis lost some of them since."""
    entry = await buffer.take_step(claim, step)
    if isinstance(entry, Waiting):
        return None
    try:
        return await buffer.load_groups(entry.groups)
    except RecordsLost:
        return None


async def _over(buffer: TrajectoryBuffer, config: Config, step: int) -> bool:
    return step > (await buffer.snapshot()).rules.total_groups // config.rollout.groups_per_step


def _content(groups: list[Group]) -> dict[str, Any]:
    samples = {str(sample.sample_id): 1 + len(sample.turns) for group in groups for sample in group.samples}
    return {"groups": [group.index for group in groups], "records": samples}


class Checkpoints:
    """The steps that a restarted trainer may begin after, and the newest ledger, in a file that a rename replaces."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: list[int] = []
        self.ledger = b"{}"
        if path.exists():
            steps, _, self.ledger = path.read_bytes().partition(b"\n")
            self._steps = [int(step) for step in steps.split()]

    @property
    def covered(self) -> int:
        """The oldest step kept, 0 while few are."""
        return self._steps[0] if len(self._steps) == CHECKPOINTS_KEPT else 0

    def newest(self, at_most: int) -> int:
        """0 before the first. Newer ones are of a history that Redis lost, and go: another's may get their steps."""
        self._keep([step for step in self._steps if step <= at_most])
        return max(self._steps, default=0)

    def write(self, step: int, ledger: bytes) -> int:
        """Covers everything up to `step`; what is covered for good."""
        self.ledger = ledger
        self._keep([*(known for known in self._steps if known < step), step][-CHECKPOINTS_KEPT:])
        return self.covered

    def _keep(self, steps: list[int]) -> None:
        self._steps, new = steps, self._path.with_suffix(".new")
        new.write_bytes(b" ".join(b"%d" % step for step in steps) + b"\n" + self.ledger)
        os.replace(new, self._path)


def kill(pid: int) -> None:
    """kill -9."""
    os.kill(pid, signal.SIGKILL)
