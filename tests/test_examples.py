"""Every example loads, and its environment makes its first prompt."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from stream_rl.config import Config
from stream_rl.envs.loading import load_environment

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.yaml"))


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"guess_number", "smollm2_arithmetic", "reasoning_gym"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_complete(path: Path) -> None:
    config = Config.load(path)
    assert config.folder.name == path.stem
    environment = load_environment(config.environment.path)
    assert environment.prompt is not None
    row = environment.prompt(config.seed, 0, SimpleNamespace(**config.environment.args))
    assert row["prompt"]
