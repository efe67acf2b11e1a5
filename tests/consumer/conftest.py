"""A tiny model on disk, a process group of one, and steps of ragged groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stream_rl.consumer.collectives import process_group
from stream_rl.models.tiny_text import make_tiny_text


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Qwen3."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_text(folder)
    return folder


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """The default process group, with this process alone in it."""
    with process_group(0, 1, f"file://{tmp_path}/rendezvous", torch.device("cpu"), 60.0):
        yield
