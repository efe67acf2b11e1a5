"""The trainer process: takes groups, updates the policy, publishes the weights.

    claim ─► newest checkpoint N ─► replay N+1..T from the ledger ─► publish T ─► steps T+1.. ─► export
                                                                          ▲          │
                                                                          └──────────┘

    step: take ─► load ─► train ─► publish ─► checkpoint ─► one line of steps.jsonl

Invariants: a step that the ledger has is trained again on the same groups, in order, under the recorded knobs; nothing
is published before the trainer is level with the ledger; what a step computes follows from its weights, its groups and
its number alone (the random generators are seeded from it), so that a replay repeats it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from stream_rl.buffer import ProcessRecord, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.consumer.batching import Floats, Samples, flatten
from stream_rl.consumer.checkpoint import Checkpoints
from stream_rl.consumer.collectives import all_sum, process_group
from stream_rl.consumer.feed import Feed, MiniBatch
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.model import pick_device
from stream_rl.consumer.pictures import Pictures
from stream_rl.consumer.prefetch import Prefetch
from stream_rl.consumer.probe import Probe
from stream_rl.consumer.publication import Publication
from stream_rl.consumer.reference import load_reference
from stream_rl.consumer.sender import GroupSender
from stream_rl.consumer.step_record import SAMPLE_COLUMNS, sample_rows, step_record
from stream_rl.consumer.transport import DiskTransport, GroupTransport, WeightTransport
from stream_rl.consumer.update import Updater
from stream_rl.consumer.weights import WeightFolders, engine_shapes
from stream_rl.engine.publish import WeightPublisher
from stream_rl.engine.publish_group import GroupPublisher
from stream_rl.errors import ConfigError, DataError, LedgerMismatch
from stream_rl.metrics.exporter import serve_metrics
from stream_rl.metrics.run_folder import STEP_PARTS
from stream_rl.metrics.turn_log import JsonLines
from stream_rl.sample import LedgerEntry, WeightVersion
from stream_rl.stopwatch import timed

__all__ = ["run_trainer"]

logger = logging.getLogger(__name__)


def run_trainer(config: Config, *, rank: int, world_size: int, init_method: str, buffer_url: str) -> None:
    """Trains to the last step, or until the run is drained; then returns. One call per rank, each in its own process.

    Args:
        config: the run's settings.
        rank, world_size, init_method: as torch.distributed wants them.
        buffer_url: where the run's Redis is.

    Raises:
        UserError: the model cannot be loaded, no checkpoint is whole, or the run has more steps than it should.
        NoTrainableBatch, TrainerSuperseded, BufferUnavailable: as their docstrings say. A rank that raises ends the
            others: their next collective raises.
        TrainingError: the weights would become NaN, or a checkpoint could not be written.
    """
    device = pick_device(config.trainer.device, rank)
    torch.set_num_threads(config.trainer.threads)
    try:
        with (
            process_group(rank, world_size, init_method, device, config.trainer.collective_timeout),
            asyncio.Runner() as runner,
            contextlib.closing(_prefetch(config, buffer_url)) as prefetch,
        ):
            buffer = runner.run(TrajectoryBuffer.of(config, buffer_url))
            publisher = WeightPublisher(timeout=config.engine.update_timeout, pause_mode=config.engine.pause_mode)
            try:
                runner.run(_register(config, buffer, rank))
                _assemble(config, device, runner, buffer, publisher, prefetch=prefetch).run()
            finally:
                runner.run(publisher.close())
                runner.run(buffer.close())
    except BaseException as error:
        logger.error("trainer rank %d ends: %s: %s", rank, type(error).__name__, error)
        raise


class Trainer:
    """One rank of the trainer, put together from its parts."""

    def __init__(
        self,
        config: Config,
        *,
        feed: Feed,
        updater: Updater,
        checkpoints: Checkpoints,
        folders: WeightFolders,
        publication: Publication,
        pictures: Pictures,
    ) -> None:
        self._config = config
        self._feed = feed
        self._updater = updater
        self._checkpoints = checkpoints
        self._folders = folders
        self._publication = publication
        self._pictures = pictures
        self._incarnation = 0
        self._level = 0
        self._saved = 0
        # One writer: the other ranks know the same figures.
        self._log = JsonLines(config.folder / "steps.jsonl") if dist.get_rank() == 0 else None

    def run(self) -> None:
        """From the newest checkpoint to the last step, or to the drain."""
        step = self._resume()
        while step < self._config.trainer.steps and self._step(step + 1):
            step += 1
        self._checkpoint(step)
        self._give_up_old(wait=True)
        self._publication.close()
        if step == self._config.trainer.steps:
            self._folders.write_to(self._checkpoints.folder / "hf")
            self._feed.finish()

    def _resume(self) -> int:
        claim = self._feed.claim(self._checkpoints.ledger(), min(self._checkpoints.steps(), default=0))
        self._incarnation, self._level = claim.incarnation, claim.ledger_steps
        if (steps := self._config.trainer.steps) < self._level:
            raise ConfigError(f"trainer.steps={steps} is less than the {self._level} steps that the run has: raise it")
        step = self._checkpoints.load_newest(self._updater.policy, self._updater.optimizer, at_most=self._level)
        self._saved = step
        logger.info("incarnation %d goes on from step %d; the ledger has %d", self._incarnation, step, self._level)
        self._publication.recover()
        if step == self._level:
            self._publish(step)
        return step

    def _step(self, step: int) -> bool:
        torch.manual_seed(self._config.seed * 1_000_003 + step)
        seconds = dict.fromkeys(STEP_PARTS, 0.0)
        with timed(seconds, "wait"):
            entry = self._take(step)
        if entry is None:
            return False
        with timed(seconds, "load"):
            loaded = self._feed.load(entry, self._config.trainer.mini_batches)
            if loaded is None:
                return False
            mini_batches, table = self._flatten(entry, loaded)
        if self._level <= step < self._config.trainer.steps:  # the next step is not one that the ledger has
            self._feed.read_ahead()
        with timed(seconds, "train"):
            figures = self._updater.step(mini_batches, step)
        with timed(seconds, "publish"):
            if step >= self._level:
                self._publish(step)
                self._ask_for_evaluation(step)
        with timed(seconds, "checkpoint"):
            if step % self._config.trainer.checkpoint_every == 0:
                self._checkpoint(step)
            self._give_up_old(wait=False)
        parts = {**seconds, **self._updater.seconds, **self._publication.seconds}
        spent = {f"{part}_seconds": taken for part, taken in parts.items()}
        self._write_line(entry, table, {**asdict(figures), **spent, "wait_reasons": self._feed.waited})
        return True

    def _take(self, step: int) -> LedgerEntry | None:
        try:
            return self._feed.take(step)
        except LedgerMismatch as error:
            if step > 1 or not self._checkpoints.broken:
                raise
            faults = "; ".join(self._checkpoints.broken)
            raise DataError(
                f"no checkpoint in {self._checkpoints.folder} is whole ({faults}), and the steps that they cover "
                "cannot be replayed: bring one back, or start a new run in another folder"
            ) from error

    def _flatten(self, entry: LedgerEntry, loaded: list[MiniBatch]) -> tuple[list[Samples], Floats]:
        version = entry.step - 1
        table = np.zeros((len(entry.groups), self._config.rollout.group_size, len(SAMPLE_COLUMNS)))
        mini_batches = []
        for places, groups in loaded:
            samples = flatten(groups, trainer_version=version, max_staleness=entry.max_staleness)
            samples = self._pictures.shown(samples, groups)
            table[places] = sample_rows(groups, samples).reshape(len(places), *table.shape[1:])
            mini_batches.append(samples)
        return mini_batches, all_sum(table)

    def _publish(self, step: int) -> None:
        self._publication.publish(WeightVersion(step, self._incarnation))

    def _ask_for_evaluation(self, step: int) -> None:
        """Every so many steps an engine stays at its version for an evaluation; the last step's comes by itself."""
        settings = self._config.evaluation
        if settings.every and settings.episodes and step % settings.every == 0 and step < self._config.trainer.steps:
            self._publication.pin(settings.deadline)

    def _checkpoint(self, step: int) -> None:
        if step != self._saved:
            self._give_up_old(wait=True)
            updater = self._updater
            self._checkpoints.save(step, updater.policy, updater.optimizer, self._feed.ledger_tail())
            self._saved = step

    def _give_up_old(self, *, wait: bool) -> None:
        """Once a checkpoint is whole, the steps before the oldest need not be replayed any more."""
        if (oldest := self._checkpoints.completed(wait=wait)) is not None:
            self._feed.checkpoints_kept(oldest)

    def _write_line(self, entry: LedgerEntry, table: Floats, figures: dict[str, Any]) -> None:
        if self._log is None:
            return
        record = {
            "time": time.time(),
            "version": str(WeightVersion(entry.step, self._incarnation)),
            "incarnation": self._incarnation,
            "replayed": entry.step <= self._level,
            **step_record(entry, table),
            **figures,
        }
        self._log.append(record)


def _prefetch(config: Config, buffer_url: str) -> Prefetch:
    return Prefetch(
        lambda: TrajectoryBuffer.of(config, buffer_url), groups=config.rollout.groups_per_step,
        mini_batches=config.trainer.mini_batches, rank=dist.get_rank(), ranks=dist.get_world_size(),
    )  # fmt: skip


def _assemble(
    config: Config, device: torch.device, runner: asyncio.Runner, buffer: TrajectoryBuffer, publisher: WeightPublisher,
    *, prefetch: Prefetch,
) -> Trainer:  # fmt: skip
    policy = load_policy(config.model, device, config.trainer)
    dtype = getattr(torch, config.model.dtype)
    folders = WeightFolders(config.folder / "weights", policy, dtype, config.model.path)
    transport: WeightTransport = DiskTransport(folders, publisher)
    if config.engine.weight_transfer == "distributed":
        # Engines of ours are on this machine; others may be anywhere, and reach it by its name.
        address = socket.getfqdn() if config.engine.urls else "127.0.0.1"
        sender = GroupSender(device, address=address, timeout=publisher.timeout)
        group = GroupPublisher(publisher, sender, engine_shapes(policy, config.model.path), config.model.dtype)
        transport = GroupTransport(policy, dtype, sender, group)
    publication = Publication(runner, buffer, publisher, transport, Probe(policy, device, config.model.dtype))
    return Trainer(
        config,
        feed=Feed(runner, buffer, prefetch, publication.update_behind),
        updater=Updater(policy, config.trainer, device, load_reference(config, policy, device)),
        checkpoints=Checkpoints(
            config.folder / "checkpoints", config.trainer.checkpoints_kept, config.trainer.collective_timeout
        ),
        folders=folders,
        publication=publication,
        pictures=Pictures.of(config, policy, lambda names: runner.run(buffer.load_images(names))),
    )


async def _register(config: Config, buffer: TrajectoryBuffer, rank: int) -> None:
    url = serve_metrics(config.metrics.host)
    await buffer.register_process(ProcessRecord(f"trainer-{rank}", "trainer", socket.gethostname(), os.getpid(), url))
