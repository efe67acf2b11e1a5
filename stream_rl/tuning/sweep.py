"""A sweep: the same settings trained under several bounds on staleness, variants and seeds, each as a run of its own.

    cells ─► of each: finished? nothing. begun? train --resume. new? train ─► sweep.json, sweep.html after each

Every cell is an ordinary run folder below the sweep's, so that a sweep that was stopped goes on where it was, and
`status` and `report` work on each of its runs.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from stream_rl.config import Config
from stream_rl.errors import ConfigError, ProcessDied
from stream_rl.metrics.run_folder import read_summary
from stream_rl.tuning.recommendation import run_ahead_for

__all__ = ["Cell", "Variant", "cells", "parse_variant", "run_cells", "train_cell"]

BOUNDS = ("scheduling.max_staleness", "scheduling.max_lag", "scheduling.run_ahead")
"""What each run of a sweep sets by its bound."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings under a name; the plain one has neither."""

    name: str = ""
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a sweep. `label` is what its seeds share."""

    label: str
    max_staleness: int
    variant: Variant
    seed: int
    folder: Path
    overrides: tuple[str, ...]

    def finished(self, steps: int) -> bool:
        """Whether it has trained all its steps, and says so."""
        return bool(read_summary(self.folder).get("steps", 0) >= steps)

    @property
    def begun(self) -> bool:
        """Whether there is something to resume."""
        return (self.folder / "config.yaml").exists()


Train = Callable[[Cell], None]


def parse_variant(text: str) -> Variant:
    """`NAME: KEY=VALUE KEY=VALUE`. Raises ConfigError."""
    name, colon, rest = text.partition(":")
    name, overrides = name.strip(), tuple(rest.split())
    if not colon or not name.replace("_", "").replace("-", "").isalnum() or not all("=" in one for one in overrides):
        raise ConfigError(
            f"--variant {text!r} must be NAME: KEY=VALUE KEY=VALUE, as in 'decoupled: trainer.clip_low=0.1'"
        )
    return Variant(name, overrides)


def cells(
    settings: Path, overrides: Sequence[str], *, staleness: Sequence[int], variants: Sequence[Variant],
    seeds: Iterable[int], folder: Path,
) -> list[Cell]:  # fmt: skip
    """Every run of a sweep, seed by seed, so that a sweep that is stopped has something of everything.

    Raises:
        ConfigError: the settings of a run cannot be used, or set what the sweep sets.
    """
    for override in itertools.chain(overrides, *(variant.overrides for variant in variants)):
        if (name := override.partition("=")[0]) in BOUNDS:
            raise ConfigError(f"{override}: the sweep sets {name} by --max-staleness, leave it out")
    found = []
    for seed, bound, variant in itertools.product(seeds, staleness, variants):
        label = f"staleness {bound}" + (f", {variant.name}" if variant.name else "")
        name = "-".join(part for part in (f"staleness{bound}", variant.name, f"seed{seed}") if part)
        bounds = zip(BOUNDS, (bound, bound, run_ahead_for(bound)), strict=True)
        own = (f"run={json.dumps(str(folder / name))}", f"seed={seed}", *(f"{key}={value}" for key, value in bounds))
        cell = Cell(label, bound, variant, seed, folder / name, (*overrides, *variant.overrides, *own))
        Config.load(settings, cell.overrides)
        found.append(cell)
    if len({cell.folder for cell in found}) < len(found):
        raise ConfigError("a staleness, seed or variant stands twice in the sweep: leave one out")
    return found


def run_cells(
    todo: Sequence[Cell], steps: int, train: Train, *, at_once: int = 1, after: Callable[[Cell], None]
) -> None:
    """Trains every cell that has not finished, `at_once` at a time; `after` is called after each.

    Raises:
        ProcessDied: a run did not reach its last step; those under way are waited for, the others not begun.
    """
    failed = threading.Event()

    def begun(cell: Cell) -> bool:
        """Trains it, unless another has failed: its own thread looks, which would begin the next before we could."""
        if failed.is_set():
            return False
        try:
            train(cell)
            if not cell.finished(steps):
                raise ProcessDied(f"{cell.folder} stopped before its last step: the same sweep goes on there")
        except Exception:
            failed.set()
            raise
        return True

    with ThreadPoolExecutor(at_once) as pool:
        running = {pool.submit(begun, cell): cell for cell in todo if not cell.finished(steps)}
        try:
            for done in as_completed(running):
                if done.result():
                    after(running[done])
        finally:
            pool.shutdown(cancel_futures=True)


def train_cell(settings: Path, cell: Cell) -> None:
    """`stream-rl train` in a process of its own. Raises ProcessDied when it fails."""
    command = [sys.executable, "-m", "stream_rl", "train", str(settings), *cell.overrides]
    if cell.begun:
        command.append("--resume")
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ProcessDied(f"{cell.folder} ended with exit code {done.returncode}: {last}")
