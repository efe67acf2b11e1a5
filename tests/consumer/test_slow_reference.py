"""Losses and gradients of whole steps equal the slow reference, for every advantage, loss and correction.

Two mini-batches, so that the second is trained with weights other than those that the step started from.
"""

from __future__ import annotations

import functools
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import slow_reference
from slow_reference import Models
from trajectories import ragged_groups
from updating import FROM_9, Tensors, assert_same, make_updater, save_moved, step

from stream_rl.config import TrainerConfig
from stream_rl.consumer.update import Updater
from stream_rl.sample import Group

load_once = functools.cache(slow_reference.load)
pytestmark = pytest.mark.usefixtures("one_rank")

ADVANTAGES = ("grpo", "dr_grpo", "rloo")
LOSSES: tuple[dict[str, Any], ...] = (
    {"policy_loss": "ppo_clip", "aggregation": "token_mean"},
    {"policy_loss": "ppo_clip", "aggregation": "sequence_mean"},
    {"policy_loss": "ppo_clip", "aggregation": "constant", "aggregation_length": 50},
    {"policy_loss": "gspo", "aggregation": "sequence_mean"},
)
CORRECTIONS: tuple[dict[str, Any], ...] = (
    {"clip_against": "rollout", "correction": "none"},
    {"clip_against": "rollout", "correction": "icepop", "importance_floor": 0.7, "importance_cap": 1.3},
    {"clip_against": "rollout", "correction": "sequence_mask", "importance_floor": 0.3, "importance_cap": 2.0},
    {"clip_against": "start", "correction": "truncated", "importance_cap": 1.2},
    {"clip_against": "start", "correction": "icepop", "importance_floor": 0.7, "importance_cap": 1.3},
    {"clip_against": "start", "correction": "sequence_mask", "importance_cap": 1.5},
)
DIVERGENCES = (
    ("loss", "k2"), ("loss", "k3"), ("weighted_loss", "k1"), ("weighted_loss", "k3"),
    ("reward", "k1"), ("reward", "k2"), ("reward", "k3"),
)  # fmt: skip


def name(parts: dict[str, Any]) -> str:
    return "-".join(str(value) for value in parts.values() if isinstance(value, str))


@pytest.fixture(scope="module")
def reference_path(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model than the one that is trained."""
    return save_moved(model_path, tmp_path_factory.mktemp("reference"), seed=5)


def assert_step_equals(updater: Updater, model_path: Path, reference_path: Path, groups: list[Group]) -> None:
    """Runs a step of two mini-batches and compares both, and the step's loss, with the slow reference."""
    settings: TrainerConfig = updater.settings
    figures, gradients, weights = step(updater, groups, mini_batches=2)
    start, reference = load_once(model_path), load_once(reference_path)
    policy = slow_reference.load(model_path)
    losses, tokens = [], []
    for number, (found, before) in enumerate(zip(gradients, weights, strict=True)):
        policy.load_state_dict({key: value.double() for key, value in before.items()})
        part = groups[number::2]
        loss, wanted = slow_reference.gradients(Models(policy, start, reference), part, settings, **FROM_9)
        assert_gradients(found, wanted)
        losses.append(loss)
        tokens.append(sum(trained_tokens(group) for group in part))
    mean = sum(loss * count for loss, count in zip(losses, tokens, strict=True)) / sum(tokens)
    assert figures.loss == pytest.approx(mean, abs=2e-6)
    assert 0 < figures.clip_share < 1
    assert (figures.correction_share > 0) == (settings.correction != "none")


def assert_gradients(found: Tensors, wanted: Tensors) -> None:
    assert max(float(value.abs().max()) for value in wanted.values()) > 1e-4
    assert_same(found, wanted, tolerance=2e-5)


def trained_tokens(group: Group) -> int:
    return sum(int((sample.version_steps >= 9 - FROM_9["max_staleness"]).sum()) for sample in group.samples)


@pytest.mark.parametrize("advantage", ADVANTAGES)
@pytest.mark.parametrize(("loss", "correction"), product(LOSSES, CORRECTIONS), ids=name)
def test_loss_and_gradients(
    model_path: Path, reference_path: Path, advantage: str, loss: dict[str, Any], correction: dict[str, Any]
) -> None:
    chosen = {"advantage": advantage, **loss, **correction, "clip_low": 0.1, "clip_high": 0.15}
    updater = make_updater(
        model_path, **chosen, learning_rate=0.01, mini_batches=2, max_tokens_per_micro_batch=90,
        entropy_coefficient=0.02,
    )  # fmt: skip
    assert_step_equals(updater, model_path, reference_path, ragged_groups(3, seed=1))


@pytest.mark.parametrize("turn_discount", [None, 0.9])
@pytest.mark.parametrize(("kl_in", "kl_estimator"), DIVERGENCES)
def test_divergence_from_the_reference(
    model_path: Path, reference_path: Path, kl_in: str, kl_estimator: str, turn_discount: float | None
) -> None:
    updater = make_updater(
        model_path, reference_path, kl_coefficient=0.3, kl_in=kl_in, kl_estimator=kl_estimator,
        turn_discount=turn_discount, learning_rate=0.01, mini_batches=2, max_tokens_per_micro_batch=90,
    )  # fmt: skip
    assert_step_equals(updater, model_path, reference_path, ragged_groups(3, seed=2))


@pytest.mark.parametrize("advantage", ADVANTAGES)
@pytest.mark.parametrize("turn_discount", [0.0, 1.0])
def test_turns_credited_by_themselves(
    model_path: Path, reference_path: Path, advantage: str, turn_discount: float
) -> None:
    updater = make_updater(model_path, advantage=advantage, turn_discount=turn_discount, learning_rate=0.01)
    assert_step_equals(updater, model_path, reference_path, ragged_groups(3, seed=3))


def test_figures_by_lag_add_up(model_path: Path) -> None:
    groups = [*ragged_groups(4, seed=4), *ragged_groups(1, seed=5, oldest=0, newest=0)]
    figures, _, _ = step(make_updater(model_path), groups, max_staleness=9)
    assert list(figures.by_lag) == ["0", "1", "2", "3-4", "5-8", ">8"]
    tokens = sum(bucket["tokens"] for bucket in figures.by_lag.values())
    for figure in ("ratio_mean", "clip_share", "engine_trainer_kl"):
        total = math.fsum(bucket["tokens"] * bucket[figure] for bucket in figures.by_lag.values())  # type: ignore[literal-required]
        assert total / tokens == pytest.approx(getattr(figures, figure))
    assert all(0 < bucket["effective_sample_size"] <= 1 for bucket in figures.by_lag.values())
