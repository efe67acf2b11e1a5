"""One real Valkey for the whole room, and a fresh run in it for every test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stream_rl.buffer import EmbeddedServer, RunRules, TrajectoryBuffer
from stream_rl.sample import WeightVersion

_runs = itertools.count()

RULES = RunRules(groups_per_step=2, group_size=2, run_ahead=1, max_staleness=2, max_lag=3, max_refills_per_group=2)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A running server with the append-only file on."""
    with EmbeddedServer(tmp_path_factory.mktemp("valkey") / "data", fsync="no") as running:
        yield running


@pytest.fixture
def run_name() -> str:
    """A run that no other test uses."""
    return f"run-{next(_runs)}"


@pytest.fixture
async def buffer(server: EmbeddedServer, run_name: str) -> AsyncIterator[TrajectoryBuffer]:
    """An open run: two siblings a group, two groups a step, one engine serving version 0."""
    async with await TrajectoryBuffer.connect(server.url, run_name, timeout=5.0) as connected:
        await connected.open_run(RULES)
        await connected.engine_joined("engine-0", "http://127.0.0.1:1", 1)
        await connected.engine_serving("engine-0", WeightVersion(0))
        yield connected


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    """Where a test's own server keeps its data."""
    return tmp_path / "data"
