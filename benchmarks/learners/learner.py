"""What every learner has in common: a step is timed, and its memory's peak is found."""

from __future__ import annotations

import ctypes
import gc
import time
from abc import ABC, abstractmethod
from pathlib import Path

import torch

from learners.work import Setup, Timed
from stream_rl.sample import Group

M_MMAP_THRESHOLD = -3
"""As in glibc's malloc.h."""


class Learner(ABC):
    """Lives in a process of its own."""

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        torch.manual_seed(0)
        self.setup = setup
        self.device = torch.device(setup.device)
        self._groups: list[Group] = []

    def give(self, groups: list[Group]) -> None:
        """What the next steps train."""
        self._groups = groups

    def step(self) -> Timed:
        """Trains the groups once: log-probs, loss, gradients, clipping, AdamW."""
        before = reset_peak_memory(self.device)
        started, cpu = time.perf_counter(), time.process_time()
        loss = self.train(self._groups)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        return Timed(seconds, cpu, peak_memory(self.device) - before, loss)

    @abstractmethod
    def train(self, groups: list[Group]) -> float:
        """One step; its loss."""


def return_what_is_freed() -> None:
    """Gives blocks of a megabyte and more mappings of their own, which costs time.

    Else glibc keeps much of what is freed, and a peak has holes in it.
    """
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)


def reset_peak_memory(device: torch.device) -> int:
    """Begins to look for the highest memory from here on; bytes in use now."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    # What is free goes back to the system first; Linux keeps the highest resident size since this was last written.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_memory(device: torch.device) -> int:
    """The most bytes in use since then."""
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    raise AssertionError(name)
