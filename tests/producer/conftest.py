"""A tiny model, a real Valkey with a fresh run for every test, and engines that play a script."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from picture_play import TURNS
from rollouts import run_config

from stream_rl.buffer import EmbeddedServer, RunRules, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.models.tiny_vlm import FRAME
from stream_rl.producer.loading import Rollout, load_rollout
from stream_rl.sample import WeightVersion

EXAMPLES = Path(__file__).parents[2] / "examples"

_runs = itertools.count()


@pytest.fixture
def config(tiny_model: Path, tmp_path: Path) -> Callable[..., Config]:
    """`config(**{"rollout.max_turns": 2})`: the guessing game in a run folder of its own, with these settings."""

    def make(**settings: Any) -> Config:
        return run_config(tmp_path / f"run-{next(_runs)}", tiny_model, settings)

    return make


@pytest.fixture
def rollout(config: Callable[..., Config]) -> Callable[..., Rollout]:
    """`rollout(**settings)`: the same, loaded."""
    return lambda **settings: load_rollout(config(**settings))


@pytest.fixture
def example(tiny_model: Path, tmp_path: Path) -> Callable[..., Config]:
    """`example("mixed_agents", "rollout.groups_per_step=2")`: its settings, for the tests' model, of one step."""

    def load(name: str, *overrides: str) -> Config:
        mine = [
            f"run={tmp_path / name}-{next(_runs)}",
            f"model.path={tiny_model}",
            "trainer.steps=1",
            "rollout.group_size=2",
        ]
        mine.append("producer.lease_seconds=0.3")  # the end of the run is heard with a heartbeat
        return Config.load(EXAMPLES / f"{name}.yaml", [*mine, *overrides])

    return load


@pytest.fixture
def seeing(tiny_vlm: Path, tmp_path: Path) -> Callable[..., Rollout]:
    """`seeing(images=2, **{"rollout.max_turns": 5})`: a rollout of the pictures' environment with a model that sees."""
    side = FRAME["qwen2_5_vl" if "2.5" in tiny_vlm.name else "qwen3_vl"]

    def load(*, model: Path = tiny_vlm, args: dict[str, Any] | None = None, **settings: Any) -> Rollout:
        tree = {"environment.path": "picture_env", "environment.args": {"side": side, **(args or {})},
                "rollout.max_turns": TURNS, **settings}  # fmt: skip
        return load_rollout(run_config(tmp_path / f"run-{next(_runs)}", model, tree))

    return load


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A running Valkey."""
    with EmbeddedServer(tmp_path_factory.mktemp("valkey") / "data", fsync="no") as running:
        yield running


@pytest.fixture
async def open_buffer(server: EmbeddedServer) -> AsyncIterator[Callable[[Config], Any]]:
    """`await open_buffer(config)`: its run, opened, with one engine serving version 0 and producer `p` alive."""
    opened: list[TrajectoryBuffer] = []

    async def connect(config: Config) -> TrajectoryBuffer:
        buffer = await TrajectoryBuffer.connect(server.url, config.name, timeout=5.0)
        opened.append(buffer)
        await buffer.open_run(RunRules.of(config))
        await buffer.engine_joined("engine-0", "http://127.0.0.1:1", 1)
        await buffer.engine_serving("engine-0", WeightVersion(0))
        await buffer.heartbeat("p", 60.0)
        return buffer

    yield connect
    for buffer in opened:
        await buffer.close()
