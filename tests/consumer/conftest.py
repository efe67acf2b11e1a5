"""A tiny model on disk, a process group of one, and steps of ragged groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stream_rl.buffer import EmbeddedServer
from stream_rl.config import Config
from stream_rl.consumer.collectives import process_group

_runs = itertools.count()


@pytest.fixture(scope="session")
def model_path(tiny_model: Path) -> Path:
    """The folder of a tiny Qwen3; this process computes with one thread, as a trainer on a shared machine does."""
    torch.set_num_threads(1)
    return tiny_model


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """The default process group, with this process alone in it."""
    with process_group(0, 1, f"file://{tmp_path}/rendezvous", torch.device("cpu"), 60.0):
        yield


@pytest.fixture(scope="session")
def buffer_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Valkey for the whole room."""
    with EmbeddedServer(tmp_path_factory.mktemp("valkey") / "data", fsync="no") as server:
        yield server.url


@pytest.fixture
def config(tmp_path: Path, model_path: Path) -> Config:
    """A small run of 6 steps, 2 mini-batches each, with a checkpoint every 2 steps."""
    return Config.parse(
        {
            "run": str(tmp_path / f"run-{next(_runs)}"),
            "model": {"path": str(model_path)},
            "environment": {"path": "guess_number"},
            "rollout": {"groups_per_step": 2, "group_size": 4},
            "scheduling": {"run_ahead": 1, "max_staleness": 2, "max_lag": 3},
            "trainer": {
                "steps": 6, "mini_batches": 2, "learning_rate": 0.01, "checkpoint_every": 2, "device": "cpu",
                "entropy_coefficient": 0.01, "collective_timeout": 60.0,
            },
        }
    )  # fmt: skip
