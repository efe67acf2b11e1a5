"""One real Valkey for the whole room, and a fresh run in it for every test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from journal_builders import begin
from rewinding_server import RewindingServer

from stream_rl.buffer import EmbeddedServer, TrajectoryBuffer

_runs = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A running server with the append-only file on."""
    with EmbeddedServer(tmp_path_factory.mktemp("valkey") / "data", fsync="no") as running:
        yield running


@pytest.fixture
def rewinding(tmp_path: Path) -> Iterator[RewindingServer]:
    """A running server of this test alone, which can lose its newest writes."""
    with RewindingServer(tmp_path / "data") as server:
        yield server


@pytest.fixture
def run_name() -> str:
    """A run that no other test uses."""
    return f"run-{next(_runs)}"


@pytest.fixture
async def buffer(server: EmbeddedServer, run_name: str) -> AsyncIterator[TrajectoryBuffer]:
    """An open run under RULES, with one engine serving version 0 and producer `p` alive."""
    async with await TrajectoryBuffer.connect(server.url, run_name, timeout=5.0) as connected:
        await begin(connected)
        yield connected


@pytest.fixture
async def other(server: EmbeddedServer, run_name: str, buffer: TrajectoryBuffer) -> AsyncIterator[TrajectoryBuffer]:
    """The same run from another process, with producer `q` alive."""
    async with await TrajectoryBuffer.connect(server.url, run_name, timeout=5.0) as connected:
        await connected.heartbeat("q", 60.0)
        yield connected
