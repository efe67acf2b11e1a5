"""The trainer's settings: the papers' own bounds, and combinations that make no sense."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stream_rl.config import Config
from stream_rl.errors import ConfigError

LEAST: dict[str, Any] = {"run": "runs/a", "model": {"path": "m"}, "environment": {"path": "guess_number"}}


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({}, (None, None)),
        ({"correction": "icepop"}, (0.5, 5.0)),
        ({"correction": "icepop", "importance_cap": 3.0}, (0.5, 3.0)),
        ({"correction": "sequence_mask"}, (None, 2.0)),
        ({"correction": "truncated", "clip_against": "start"}, (None, 2.0)),
        ({"correction": "truncated", "clip_against": "start", "importance_cap": None}, (None, None)),
    ],
)
def test_a_correction_brings_its_papers_bounds(
    given: dict[str, Any], bounds: tuple[float | None, float | None], tmp_path: Path
) -> None:
    config = Config.parse({**LEAST, "trainer": given})
    assert (config.trainer.importance_floor, config.trainer.importance_cap) == bounds
    (tmp_path / "config.yaml").write_text(config.dump())
    assert Config.load(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"final_learning_rate_share": 0.1}, "needs learning_rate_schedule"),
        ({"learning_rate_schedule": "linear", "steps": 5, "warmup_steps": 5}, "warmup_steps=5 leaves none of steps=5"),
        ({"steps": 5, "warmup_steps": 6}, "warmup_steps=6 is more than steps=5: learning_rate is never reached"),
        ({"importance_cap": 2.0}, "need a correction"),
        ({"importance_floor": 0.5}, "need a correction"),
        ({"clip_against": "start"}, "add correction=truncated"),
        ({"correction": "truncated"}, "twice: set clip_against=start"),
        ({"correction": "truncated", "clip_against": "start", "importance_floor": 0.5}, "has no importance_floor"),
        ({"correction": "icepop", "importance_cap": 0.4}, "importance_floor=0.5 is not below importance_cap=0.4"),
        ({"policy_loss": "gspo"}, "set aggregation=sequence_mean"),
        ({"aggregation": "constant"}, "need each other"),
        ({"aggregation_length": 100}, "need each other"),
        ({"kl_in": "reward"}, "need a kl_coefficient"),
        ({"reference_path": "models/other"}, "need a kl_coefficient"),
        ({"kl_in": "weighted_loss"}, "need a kl_coefficient"),
        (
            {"kl_coefficient": 0.1, "kl_estimator": "k1"},
            "kl_estimator=k1 with kl_in=loss has a mean gradient of zero: set kl_in=weighted_loss",
        ),
        (
            {"kl_coefficient": 0.1, "kl_estimator": "k2", "kl_in": "weighted_loss"},
            "kl_estimator=k2 with kl_in=weighted_loss has no divergence's gradient: set kl_in=loss, or k1 or k3",
        ),
    ],
)
def test_a_combination_without_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.parse({**LEAST, "trainer": given})


def test_turns_cannot_be_credited_with_a_reward_of_the_whole_sample() -> None:
    environment = {"path": "guess_number", "reward_path": "rewards:judge"}
    with pytest.raises(ConfigError, match=r"remove environment\.reward_path"):
        Config.parse({**LEAST, "environment": environment, "trainer": {"turn_discount": 1.0}})


def test_the_last_step_of_a_run_may_be_the_first_at_the_full_rate() -> None:
    assert Config.parse({**LEAST, "trainer": {"steps": 5, "warmup_steps": 5}}).trainer.warmup_steps == 5


@pytest.mark.parametrize("setting", ["trainer.collective_timeout", "engine.update_timeout"])
@pytest.mark.parametrize("seconds", [0, 1e300, 1e10])
def test_a_time_that_no_clock_of_the_process_groups_can_hold_is_refused(setting: str, seconds: float) -> None:
    section, name = setting.split(".")
    with pytest.raises(ConfigError, match=re.escape(f"setting {setting}={seconds}")):
        Config.parse({**LEAST, section: {name: seconds}})
    timedelta(seconds=getattr(getattr(Config.parse({**LEAST, section: {name: 1e6}}), section), name))
