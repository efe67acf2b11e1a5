"""Checkpoints: the model, the optimizer and the step, in one folder a step.

    checkpoints/step-000020/     DCP shards, loadable at any world size
                    ledger.json    the groups of the newest steps, should Redis lose them together with the trainer
                    manifest.json  step, and the size and CRC-32 of every other file
    checkpoints/hf/              the trained model as a Hugging Face folder, at the end of the run

    save: copy the shards ─► return to training        beside it: write ─► manifest ─► rename ─► remove the oldest

Invariants: a folder appears under its name by one rename, after everything in it is on disk; a folder whose files are
not what its manifest says is never loaded; the steps that a checkpoint covers are given up only once it is whole.
Nothing of the random generators is stored: a step seeds them from its number, so that it is the same at any world size.
The trainer's incarnation is not stored either: the buffer hands it out.
"""

from __future__ import annotations

import logging
import os
import shutil
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.utils._pytree import tree_map_only

from stream_rl.consumer.collectives import barrier, broadcast
from stream_rl.consumer.model import Policy
from stream_rl.errors import ModelError, TrainingError

__all__ = ["LEDGER", "MANIFEST", "Checkpoints", "publish_folder"]

logger = logging.getLogger(__name__)
MANIFEST, LEDGER = "manifest.json", "ledger.json"
_BLOCK = 1 << 20


class Checkpoints:
    """The checkpoints of one run. Every method that is marked so is a collective over the trainer's ranks.

    Args:
        folder: where they are, reached by all ranks.
        kept: how many of the newest are kept.
        timeout: seconds that writing one may take.
    """

    def __init__(self, folder: Path, kept: int, timeout: float = 1800.0) -> None:
        self.folder = folder
        self._kept = kept
        self._timeout = timeout
        # Writing goes on beside training, whose collectives must not meet its own.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[int] | None = None
        self.broken: list[str] = []
        """What rank 0 has skipped, and why."""

    def save(self, step: int, policy: Policy, optimizer: torch.optim.Optimizer, ledger: bytes = b"{}") -> None:
        """Copies the state of a step and begins to write it; waits for the one before. A collective.

        Args:
            step, policy, optimizer: what a resume goes on from.
            ledger: the buffer's `ledger_tail` on rank 0.
        """
        self._wait()
        partial = self.folder / f".partial-{_name(step)}"
        if dist.get_rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            (partial / LEDGER).write_bytes(ledger)
        barrier()
        self._writing = self._threads.submit(self._write, step, partial, _copied(_state(policy, optimizer)))

    def completed(self, *, wait: bool = False) -> int | None:
        """The oldest step that is kept, on rank 0, when a checkpoint has become whole since this was last asked.

        Args:
            wait: for the one that is being written, if there is one.

        Raises:
            TrainingError: it could not be written.
        """
        if self._writing is None or not (wait or self._writing.done()):
            return None
        oldest, self._writing = self._wait(), None
        return oldest

    def _wait(self) -> int | None:
        try:
            return None if self._writing is None else self._writing.result(self._timeout)
        except (OSError, CheckpointException) as error:  # TimeoutError is an OSError
            free = shutil.disk_usage(self.folder).free >> 20
            raise TrainingError(
                f"a checkpoint could not be written to {self.folder}, where {free} MiB are free: {_cause(error)}"
            ) from error

    def _write(self, step: int, partial: Path, state: dict[str, Any]) -> int:
        save(state, checkpoint_id=partial, process_group=self._group)
        if dist.get_rank() == 0:
            _write_manifest(partial, step)
            publish_folder(partial, self.folder / _name(step))
            for old in self.steps()[: -self._kept]:
                shutil.rmtree(self.folder / _name(old))
        return min(self.steps(), default=0)

    def load_newest(self, policy: Policy, optimizer: torch.optim.Optimizer, *, at_most: int) -> int:
        """Loads the newest whole checkpoint, whatever world size wrote it. A collective.

        Args:
            policy, optimizer: take the state.
            at_most: the ledger's last step. Newer checkpoints are of a history that the buffer lost: they are removed,
                so that no later resume takes them for the steps that will have their numbers.

        Returns:
            Its step; 0, with nothing loaded, when there is none.

        Raises:
            ModelError: it is of another model, or of one with other weights frozen.
        """
        step = orjson.loads(broadcast(orjson.dumps(self._newest_whole(at_most) if dist.get_rank() == 0 else None)))
        if step:
            state = _state(policy, optimizer)
            try:
                load(state, checkpoint_id=self.folder / _name(step))
            except CheckpointException as error:
                raise ModelError(
                    f"checkpoint {self.folder / _name(step)} does not load into model.path with this "
                    f"trainer.frozen ({_cause(error)}): set both as they were, or start a new run in another folder"
                ) from error
            set_state_dict(policy, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return int(step)

    def ledger(self) -> bytes:
        """The newest steps' groups as the newest checkpoint has them; an empty object where there is none."""
        for step in reversed(self.steps()):
            path = self.folder / _name(step)
            if _fault(path, only=LEDGER) is None:
                return (path / LEDGER).read_bytes()
        return b"{}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, oldest first; folders that a person put beside them are left alone."""
        found = {path.name: path.name.removeprefix("step-") for path in self.folder.glob("step-*") if path.is_dir()}
        return sorted(int(step) for name, step in found.items() if step.isdecimal() and _name(int(step)) == name)

    def _newest_whole(self, at_most: int) -> int:
        for step in reversed(self.steps()):
            path = self.folder / _name(step)
            if step > at_most:
                logger.warning("checkpoint %s is beyond the ledger's step %d and removed", path, at_most)
                shutil.rmtree(path)
            elif fault := _fault(path):
                logger.warning("checkpoint %s is broken and skipped: %s", path, fault)
                self.broken.append(f"{path.name}: {fault}")
            else:
                return step
        return 0


def publish_folder(partial: Path, final: Path) -> None:
    """Renames a finished folder into place and makes the rename durable; replaces an older one of that name."""
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _state(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model, optimizer_state = get_state_dict(policy, optimizer)
    return {"model": model, "optimizer": optimizer_state}


@torch.no_grad()
def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """The state in memory of its own, on the CPU: training may go on with what it was taken of."""
    copied: dict[str, Any] = tree_map_only(Tensor, lambda value: value.detach().to("cpu", copy=True), state)
    return copied


def _write_manifest(folder: Path, step: int) -> None:
    files = {path.name: [path.stat().st_size, _crc(path)] for path in sorted(folder.iterdir())}
    with (folder / MANIFEST).open("wb") as file:
        file.write(orjson.dumps({"step": step, "files": files}))
        file.flush()
        os.fsync(file.fileno())


def _fault(folder: Path, only: str | None = None) -> str | None:
    try:
        listed = orjson.loads((folder / MANIFEST).read_bytes())["files"]
        files = [(name, *listed[name]) for name in (listed if only is None else (only,))]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"{MANIFEST}: {error}"
    for name, size, crc in files:
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size or _crc(path) != crc:
            return f"{name} is damaged"
    return None


def _cause(error: BaseException) -> str:
    """What lies behind an error; DCP's own text is the ranks' tracebacks, and its class no Exception."""
    failures = error.failures if isinstance(error, CheckpointException) else {}
    cause = next((found for found, _ in failures.values()), error)
    return f"{type(cause).__name__}: {cause}"


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc
