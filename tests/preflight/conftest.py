"""Settings that pass every check, to be spoiled one at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stream_rl.config import Config


@pytest.fixture
def config(tiny_model: Path, tmp_path: Path) -> Callable[..., Config]:
    """`config(run=..., trainer={"steps": 3})`: good settings of a run in tmp_path/run, with these sections replaced."""

    def make(**sections: Any) -> Config:
        tree: dict[str, Any] = {
            "run": str(tmp_path / "run"),
            "model": {"path": str(tiny_model)},
            "environment": {"path": "guess_number"},
            "rollout": {"max_turn_len": 2, "max_response_len": 64, "max_context_len": 128},
        }
        return Config.parse(tree | sections)

    return make
