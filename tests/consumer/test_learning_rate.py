"""The learning rate's curve, from the step's number alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from stream_rl.config import TrainerConfig
from stream_rl.consumer.learning_rate import learning_rate

SHAPES = st.sampled_from(["linear", "cosine"])


def settings(shape: str, steps: int, warmup: int = 0, share: float = 0.0) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {
            "learning_rate": 0.5, "learning_rate_schedule": shape, "steps": steps, "warmup_steps": warmup,
            "final_learning_rate_share": share,
        }
    )  # fmt: skip


@pytest.mark.parametrize(("step", "share"), [(1, 0.25), (3, 0.75), (4, 1.0), (5, 1.0), (9, 1.0)])
def test_constant_after_the_warm_up(step: int, share: float) -> None:
    assert learning_rate(settings("constant", 9, warmup=4), step) == pytest.approx(0.5 * share)


@given(SHAPES, st.integers(1, 60), st.integers(0, 60), st.floats(0, 1))
def test_rises_to_the_peak_then_falls_towards_the_final_share(shape: str, left: int, warmup: int, share: float) -> None:
    chosen = settings(shape, left + warmup, warmup, share)
    rates = [learning_rate(chosen, step) for step in range(1, left + warmup + 2)]
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup] == pytest.approx(0.5)
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert rates[-1] == pytest.approx(0.5 * share)
    assert min(rates[:-1]) > 0


@pytest.mark.parametrize(
    ("shape", "theirs"), [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)]
)
def test_equals_hugging_faces_curve_after_the_warm_up(shape: str, theirs: object) -> None:
    optimizer = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.5)
    schedule = theirs(optimizer, num_warmup_steps=3, num_training_steps=10)  # type: ignore[operator]
    for step in range(1, 11):
        if step > 3:
            assert learning_rate(settings(shape, 10, warmup=3), step) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
