"""A second real SGLang server as judge, through its OpenAI-compatible endpoint; and the example that starts one."""

from __future__ import annotations

import subprocess
import sys
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

ROOT = Path(__file__).parents[2]
TALK = """
from stream_rl.envs.base import BaseInteractionEnv
from stream_rl.envs.guess_number import prompt


def build_env(sample=None, args=None, **_):
    return Talk()


class Talk(BaseInteractionEnv):
    def reset(self):
        return {}, {}

    def step(self, response_text):
        return {"obs_str": "higher"}, False, {"reward": 0.1}
"""
"""A world that takes whatever a model without training says."""


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


def test_the_example_trains_beside_the_judge_that_it_starts(tiny_model, tmp_path):
    run, talk = tmp_path / "run", tmp_path / "talk.py"
    talk.write_text(TALK)
    settings = (
        f"run={run}", f"model.path={tiny_model}", f"environment.args.judge.url=http://127.0.0.1:{free_port()}/v1",
        f"environment.args.environment={talk}", "rollout.max_turn_len=24", "rollout.max_response_len=110",
        "rollout.groups_per_step=2", "rollout.group_size=4", "trainer.steps=2", "trainer.mini_batches=1",
        "evaluation.episodes=0",
    )  # fmt: skip
    command = [sys.executable, ROOT / "examples" / "judge.py", *settings]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len((run / "steps.jsonl").read_text().splitlines()) == 2
    questions = (tmp_path / "run.judge.log").read_text().count("Prefill batch")
    assert questions > 1, "the first is the probe of its start"
