"""One step does not depend on how it is divided, and its figures are what they say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import slow_reference
import torch
from torch.distributed.tensor import DTensor
from trajectories import ragged_groups, sample_of, turn
from updating import AGGREGATIONS, CPU, assert_same, make_updater, step

from stream_rl.config import ModelConfig, TrainerConfig
from stream_rl.consumer import head
from stream_rl.consumer.batching import flatten
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.model import full_tensors
from stream_rl.consumer.update import Updater
from stream_rl.errors import TrainingError
from stream_rl.sample import Group

pytestmark = pytest.mark.usefixtures("one_rank")


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda settings: settings["aggregation"])
def test_micro_batches_change_nothing(model_path: Path, aggregation: dict[str, object]) -> None:
    groups = ragged_groups(5, seed=3)
    results = [
        step(make_updater(model_path, max_tokens_per_micro_batch=size, **aggregation), groups)
        for size in (1, 70, 100_000)
    ]
    for figures, (gradients,), _ in results[:-1]:
        assert_same(gradients, results[-1][1][0])
        assert figures.grad_norm == pytest.approx(results[-1][0].grad_norm, rel=1e-4)
        assert figures.entropy == pytest.approx(results[-1][0].entropy, rel=1e-5)


def test_a_chunked_head_changes_nothing(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = ragged_groups(3, seed=4)
    _, (whole,), _ = step(make_updater(model_path), groups)
    monkeypatch.setitem(head.LOGITS_PER_CHUNK, "cpu", 32 * 7)
    _, (chunked,), _ = step(make_updater(model_path), groups)
    assert_same(chunked, whole, tolerance=1e-6)


def test_a_step_without_fresh_tokens_moves_nothing(model_path: Path) -> None:
    updater = make_updater(model_path)
    before = {name: value.clone() for name, value in full_tensors(updater.policy, torch.float32)}
    figures, (gradients,), _ = step(updater, ragged_groups(2, newest=3), max_staleness=1)
    assert math.isnan(figures.loss)
    assert figures.grad_norm == 0.0
    assert not any(gradient.any() for gradient in gradients.values())
    for name, value in full_tensors(updater.policy, torch.float32):
        torch.testing.assert_close(value, before[name], atol=0, rtol=0)


def test_an_update_that_would_ruin_the_weights_is_not_made_but_named(model_path: Path) -> None:
    updater = make_updater(model_path)
    groups = ragged_groups(2)
    groups[0].samples[0].turns[0].log_probs[0] = -200.0  # an engine's fault: the ratio is infinite
    before = {name: value.clone() for name, value in full_tensors(updater.policy, torch.float32)}
    with pytest.raises(TrainingError, match=r"step 10 would make the weights NaN, .*trainer.learning_rate"):
        step(updater, groups, max_staleness=9)
    for name, value in full_tensors(updater.policy, torch.float32):
        torch.testing.assert_close(value, before[name], atol=0, rtol=0)


def test_a_reference_is_in_shards_while_the_policy_trains(model_path: Path) -> None:
    policy, reference = (load_policy(ModelConfig(path=str(model_path)), CPU) for _ in range(2))
    updater = Updater(policy, TrainerConfig(kl_coefficient=0.1), CPU, reference)
    updater.step([flatten(ragged_groups(1), trainer_version=9, max_staleness=4)], 1)
    assert all(isinstance(value, DTensor) for value in reference.parameters())


def test_gradients_are_clipped_to_the_global_norm(model_path: Path) -> None:
    groups = ragged_groups(3, seed=5)
    free, *_ = step(make_updater(model_path), groups)
    figures, (gradients,), _ = step(make_updater(model_path, max_grad_norm=free.grad_norm / 10), groups)
    assert figures.grad_norm == pytest.approx(free.grad_norm, rel=1e-5)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
    assert norm == pytest.approx(free.grad_norm / 10, rel=1e-3)


@pytest.mark.parametrize(("number", "share"), [(1, 0.25), (3, 0.75), (4, 1.0), (9, 1.0)])
def test_the_learning_rate_warms_up_by_the_steps_number(model_path: Path, number: int, share: float) -> None:
    updater = make_updater(model_path, learning_rate=0.01, warmup_steps=4)
    updater.step([flatten(ragged_groups(1), trainer_version=9, max_staleness=9)], number)
    assert updater.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * share)


def test_log_prob_difference_is_of_tokens_of_the_newest_version(model_path: Path) -> None:
    exact = sample_of([turn(0, [7, 8, 9], [], version=9)], index=0, reward=0.0)
    other = sample_of([turn(0, [7, 8, 9], [], version=8)], index=1, reward=1.0)
    reference = slow_reference.load(model_path)
    with torch.no_grad():
        logits = torch.log_softmax(reference(torch.tensor(exact.tokens.tolist())[None]).logits[0], -1)
    for place, token in enumerate([7, 8, 9]):
        exact.turns[0].log_probs[place] = logits[2 + place, token]
    figures, *_ = step(make_updater(model_path), [Group(0, 8, [exact, other])])
    assert figures.log_prob_difference < 1e-5
    assert figures.log_prob_difference_all > 0.5
