"""One step equals the slow reference, and does not depend on how it is divided."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import slow_reference
import torch
from torch import Tensor
from trajectories import ragged_groups, sample_of, turn

from stream_rl.config import ModelConfig, TrainerConfig
from stream_rl.consumer import model as model_module
from stream_rl.consumer.batching import flatten, mini_batch_groups
from stream_rl.consumer.model import full_tensors, load_policy
from stream_rl.consumer.update import UpdateFigures, Updater
from stream_rl.sample import Group

CPU = torch.device("cpu")
NO_CLIPPING = 1e9
FROM_9 = {"trained_from": 9, "max_staleness": 4}
pytestmark = pytest.mark.usefixtures("one_rank")


def make_updater(model_path: Path, **settings: object) -> Updater:
    policy = load_policy(ModelConfig(path=str(model_path)), CPU)
    return Updater(policy, TrainerConfig.model_validate({"max_grad_norm": NO_CLIPPING, **settings}), CPU)


def step(
    updater: Updater, groups: list[Group], mini_batches: int = 1, max_staleness: int = 4
) -> tuple[UpdateFigures, list[dict[str, Tensor]]]:
    """Runs one step from version 9; returns its figures and every update's gradients."""
    gradients: list[dict[str, Tensor]] = []
    names = [name.removeprefix("language_model.") for name, _ in updater.policy.named_parameters()]

    def record(*_: object) -> None:
        whole = [parameter.grad.full_tensor() for parameter in updater.policy.parameters()]  # type: ignore[union-attr]
        gradients.append({name: value.clone() for name, value in zip(names, whole, strict=True)})

    handle = updater.optimizer.register_step_pre_hook(record)
    dealt = mini_batch_groups(range(len(groups)), mini_batches)
    samples = [flatten([groups[n] for n in places], trainer_version=9, max_staleness=max_staleness) for places in dealt]
    figures = updater.step(samples, step=10)
    handle.remove()
    return figures, gradients


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert found.keys() == wanted.keys()
    scale = max(float(value.abs().max()) for value in wanted.values())
    for name, value in wanted.items():
        torch.testing.assert_close(found[name].double(), value.double(), atol=tolerance * scale, rtol=0, msg=name)


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("entropy", [0.0, 0.05])
def test_loss_and_gradients_equal_the_slow_reference(model_path: Path, cap: float | None, entropy: float) -> None:
    groups = ragged_groups(4, seed=1)
    updater = make_updater(
        model_path, importance_cap=cap, entropy_coefficient=entropy, clip_high=0.3, max_tokens_per_micro_batch=90
    )
    figures, (found,) = step(updater, groups)
    reference = slow_reference.load(model_path)
    loss, wanted = slow_reference.gradients(reference, reference, groups, updater.settings, **FROM_9)
    assert figures.loss == pytest.approx(loss, abs=1e-6)
    assert 0 < figures.clip_share < 1
    assert_same(found, wanted)


def test_later_mini_batches_weigh_by_the_weights_of_the_steps_start(model_path: Path) -> None:
    groups = ragged_groups(4, seed=2)
    updater = make_updater(model_path, importance_cap=1.2, learning_rate=0.02, mini_batches=2)
    moved = slow_reference.load(model_path)

    def copy_weights(*_: object) -> None:
        moved.load_state_dict({name: value.double() for name, value in full_tensors(updater.policy, torch.float32)})

    updater.optimizer.register_step_post_hook(copy_weights)
    copies = []
    updater.optimizer.register_step_pre_hook(
        lambda *_: copies.append({k: v.clone() for k, v in moved.state_dict().items()})
    )
    _, gradients = step(updater, groups, mini_batches=2)
    moved.load_state_dict(copies[1])
    start = slow_reference.load(model_path)
    _, wanted = slow_reference.gradients(moved, start, groups[1::2], updater.settings, **FROM_9)
    assert_same(gradients[1], wanted)


def test_micro_batches_change_nothing(model_path: Path) -> None:
    groups = ragged_groups(5, seed=3)
    results = [step(make_updater(model_path, max_tokens_per_micro_batch=size), groups) for size in (1, 70, 100_000)]
    for figures, (gradients,) in results[:-1]:
        assert_same(gradients, results[-1][1][0])
        assert figures.grad_norm == pytest.approx(results[-1][0].grad_norm, rel=1e-4)
        assert figures.entropy == pytest.approx(results[-1][0].entropy, rel=1e-5)


def test_a_chunked_head_changes_nothing(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = ragged_groups(3, seed=4)
    _, (whole,) = step(make_updater(model_path), groups)
    monkeypatch.setattr(model_module, "LOGITS_PER_CHUNK", 32 * 7)
    _, (chunked,) = step(make_updater(model_path), groups)
    assert_same(chunked, whole, tolerance=1e-6)


def test_a_step_without_fresh_tokens_moves_nothing(model_path: Path) -> None:
    updater = make_updater(model_path)
    before = dict(full_tensors(updater.policy, torch.float32))
    figures, (gradients,) = step(updater, ragged_groups(2, newest=3), max_staleness=1)
    assert math.isnan(figures.loss)
    assert figures.grad_norm == 0.0
    assert not any(gradient.any() for gradient in gradients.values())
    for name, value in full_tensors(updater.policy, torch.float32):
        torch.testing.assert_close(value, before[name], atol=0, rtol=0)


def test_gradients_are_clipped_to_the_global_norm(model_path: Path) -> None:
    groups = ragged_groups(3, seed=5)
    free, _ = step(make_updater(model_path), groups)
    figures, (gradients,) = step(make_updater(model_path, max_grad_norm=free.grad_norm / 10), groups)
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
    figures, _ = step(make_updater(model_path), [Group(0, 8, [exact, other])])
    assert figures.log_prob_difference < 1e-5
    assert figures.log_prob_difference_all > 0.5
