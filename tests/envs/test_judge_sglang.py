"""A second real SGLang server as judge, through its OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_rl.config import Config
from stream_rl.engine.ports import free_port
from stream_rl.engine.server import EngineServer, launch_command, launch_environment
from stream_rl.envs import judge as judge_module
from stream_rl.envs.base import EnvSample
from stream_rl.envs.judge import build_env
from stream_rl.models.tiny_text import WORDS


@pytest.fixture
def judge_url(tiny_model: Path, tmp_path: Path) -> Iterator[str]:
    """A server of the tiny model with its tokenizer, which the engines of a run do without."""
    config = Config.parse(
        {"run": str(tmp_path), "model": {"path": str(tiny_model)}, "environment": {"path": "guess_number"},
         "engine": {"device": "cpu"}}
    )  # fmt: skip
    port = free_port()
    command = [part for part in launch_command(config, 0, port) if part != "--skip-tokenizer-init"]
    environment = launch_environment(config)
    server = EngineServer(command, environment, port=port, log_path=tmp_path / "judge.log", start_timeout=120)
    server.start()
    try:
        server.wait_ready()
        yield f"{server.url}/v1"
    finally:
        judge_module._client.cache_clear()
        server.stop()


async def test_its_words_reach_the_model_and_are_the_same_when_asked_again(judge_url):
    judge = {"url": judge_url, "model": "default", "gives": "feedback", "question": "guess $response", "max_tokens": 8}

    said = []
    for cache_size in (16, 0):
        settings = {**judge, "cache_size": cache_size}
        env = build_env(EnvSample("guess", 5), None, judge=settings, environment="guess_number")
        observation, _, info = await env.step("3")
        said.append(observation["obs_str"])
        assert info == {"reward": 0.1}

    first, *words = said[0].split()
    assert first == "higher"
    assert 0 < len(words) <= 8
    assert set(words) <= set(WORDS)
    assert said[1] == said[0]
