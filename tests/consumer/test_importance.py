"""Importance weights by hand: what is held, what is dropped, and that the ratio enters once."""

from __future__ import annotations

import pytest
import torch

from stream_rl.config import TrainerConfig
from stream_rl.consumer.importance import Importance, importance

# Two sequences, of three tokens and of two; products of ratios 0.5 * 2 * 3 = 3 and 1 * 0.5 = 0.5.
RATIOS, ROWS = [0.5, 2.0, 3.0, 1.0, 0.5], torch.tensor([0, 0, 0, 1, 1])


def weigh(**settings: object) -> Importance:
    rollout = torch.full((5,), -2.0)
    start = (rollout + torch.tensor(RATIOS).log()).requires_grad_()
    return importance(start, rollout, ROWS, 2, TrainerConfig.model_validate(settings))


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({"correction": "truncated", "importance_cap": 2.5}, [0.5, 2.0, 2.5, 1.0, 0.5]),
        ({"correction": "truncated", "importance_cap": None}, RATIOS),
        ({"correction": "icepop", "importance_floor": 0.6, "importance_cap": 2.5}, [0.0, 2.0, 0.0, 1.0, 0.0]),
        ({"correction": "sequence_mask", "importance_cap": 2.5}, [0.0, 0.0, 0.0, 0.5, 0.5]),
        ({"correction": "sequence_mask", "importance_floor": 0.6, "importance_cap": 3.5}, [3.0, 3.0, 3.0, 0.0, 0.0]),
    ],
)
def test_weights_beside_a_clip_against_the_start(settings: dict[str, object], weights: list[float]) -> None:
    found = weigh(clip_against="start", **settings)
    torch.testing.assert_close(found.weights, torch.tensor(weights))
    held = settings["correction"] == "truncated"
    assert found.bounded.tolist() == [
        weight != ratio if held else weight == 0.0 for weight, ratio in zip(weights, RATIOS, strict=True)
    ]
    assert not found.weights.requires_grad


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"correction": "icepop", "importance_floor": 0.6, "importance_cap": 2.5}, [0, 1, 0, 1, 0]),
        ({"correction": "sequence_mask", "importance_cap": 2.5}, [0, 0, 0, 1, 1]),
    ],
)
def test_beside_a_clip_against_the_rollout_policy_tokens_are_only_dropped(
    settings: dict[str, object], kept: list[int]
) -> None:
    assert weigh(**settings).weights.tolist() == kept


def test_a_ratio_beyond_any_number_drops_its_sequence() -> None:
    rollout = torch.tensor([-200.0, -1.0])
    settings = TrainerConfig(correction="sequence_mask", clip_against="start")
    found = importance(torch.zeros(2), rollout, torch.tensor([0, 1]), 2, settings)
    assert found.weights.tolist() == [0.0, 0.0]
