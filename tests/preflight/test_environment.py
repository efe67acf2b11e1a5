"""What environment.args may say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stream_rl.config import Config
from stream_rl.errors import ConfigError
from stream_rl.preflight.environment import check_environment

Make = Callable[..., Config]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("blank_observation", "did you mean 'blank_observations'?"), ("zzz", "it takes blank_observations")],
)
def test_a_misspelt_argument_is_refused_with_the_nearest(config: Make, name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_environment(config(environment={"path": "guess_number", "args": {name: True}}))
    assert str(caught.value) == (
        f"environment.args.{name} is nothing that environment.path='guess_number' takes: {hint}"
    )


def test_arguments_that_are_taken(config: Make) -> None:
    check_environment(config(environment={"path": "guess_number", "args": {"blank_observations": True}}))
    check_environment(config(environment={"path": "reasoning_gym", "args": {"dataset": "chain_sum", "config": {}}}))
    check_environment(config(environment={"path": "guess_number", "args": {"tool_agent": {}}}))


def test_an_environment_that_reads_its_arguments_itself_takes_any(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "world_of_any.py").write_text("def build_env(sample=None, args=None, **_): return args.anything\n")
    monkeypatch.syspath_prepend(tmp_path)
    check_environment(config(environment={"path": "world_of_any", "args": {"anything": 1}}))
