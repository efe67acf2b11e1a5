"""Every example loads, with its environment, and has its first prompt."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from stream_rl.config import Config
from stream_rl.envs.loading import load_environment
from stream_rl.producer.prompts import open_prompts
from stream_rl.slime.imports import allow_slime_imports

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.yaml"))


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"guess_number", "smollm2_arithmetic", "reasoning_gym"}


@pytest.mark.usefixtures("in_the_checkout")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_complete(path: Path) -> None:
    config = Config.load(path)
    assert config.folder.name == path.stem
    if config.environment.slime_imports:
        allow_slime_imports()
    environment = load_environment(config.environment.path)
    assert open_prompts(config, environment, SimpleNamespace(**config.environment.args)).row(0).prompt


@pytest.mark.usefixtures("in_the_checkout")
async def test_a_slow_world_answers_as_the_game_later(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    module = load_environment("examples/slow_guess_number.py")
    monkeypatch.setattr("asyncio.sleep", sleep)
    env = module.build_env(sample=SimpleNamespace(label=3), seconds=0.25)
    assert await env.step("5") == ({"obs_str": "lower"}, False, {"reward": pytest.approx(0.1)})
    assert slept == [0.25]
