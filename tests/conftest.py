"""What every room's tests share: a tiny model on disk, one real SGLang server, a port that is taken."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from stream_rl.config import Config
from stream_rl.engine.server import EngineServer
from stream_rl.models import make_model

# The same examples on every machine, however slow it is today.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny text model. Read only."""
    folder = tmp_path_factory.mktemp("models") / "tiny-text"
    make_model("tiny-text", folder)
    return folder


@pytest.fixture(scope="session")
def sglang(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """A real server of the tiny model, float32, shared by all tests.

    A test that publishes weights or pauses the engine leaves it running; none may count on a version it did not
    publish itself.
    """
    config = Config.parse(
        {
            "run": str(tmp_path_factory.mktemp("sglang")),
            "model": {"path": str(tiny_model)},
            "environment": {"path": "guess_number"},
            "engine": {"device": "cpu"},
        }
    )
    server = EngineServer.from_config(config, 0, log_path=config.folder / "engine-0.log", seeded=True)
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of this machine on which something listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]
