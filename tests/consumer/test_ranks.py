"""Two ranks are one rank: gradients, checkpoints across world sizes, and a rank's failure ends the others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import DEADLINE, on_ranks
from torch import Tensor
from trajectories import ragged_groups
from updating import AGGREGATIONS, make_updater

from stream_rl.config import ModelConfig, TrainerConfig
from stream_rl.consumer.batching import Samples, flatten, mini_batch_groups, share
from stream_rl.consumer.checkpoint import Checkpoints
from stream_rl.consumer.collectives import all_max, all_sum, broadcast
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.model import full_tensors
from stream_rl.consumer.update import Updater
from stream_rl.consumer.weights import gather

CPU = torch.device("cpu")
ALGORITHMS = (
    *AGGREGATIONS,
    {"clip_against": "start", "correction": "sequence_mask"},
    {"kl_coefficient": 0.1, "kl_in": "reward", "kl_estimator": "k1", "turn_discount": 0.9},
)
SETTINGS = TrainerConfig(learning_rate=0.01, mini_batches=2, max_tokens_per_micro_batch=120, entropy_coefficient=0.01)


def trained_updater(model_path: Path) -> Updater:
    return Updater(load_policy(ModelConfig(path=str(model_path)), CPU), SETTINGS, CPU)


def train(updater: Updater, first: int, last: int) -> list[Any]:
    """Steps first..last, each rank on its share of the same groups; the figures of each."""
    return [updater.step(own_mini_batches(seed=step), step) for step in range(first, last + 1)]


def own_mini_batches(seed: int) -> list[Samples]:
    """This rank's share of the same groups."""
    groups = ragged_groups(5, seed=seed)
    mini_batches = []
    for places in mini_batch_groups(range(len(groups)), SETTINGS.mini_batches):
        owners = share([1] * len(places), dist.get_world_size())
        mine = [groups[n] for n, owner in zip(places, owners, strict=True) if owner == dist.get_rank()]
        mini_batches.append(flatten(mine, trainer_version=9, max_staleness=4))
    return mini_batches


def first_gradients(model_path: Path) -> list[tuple[Any, dict[str, Any]]]:
    """Of a step for each of ALGORITHMS: its figures, and the gradients of its first update."""
    found = []
    for settings in ALGORITHMS:
        updater = make_updater(
            model_path, model_path if "kl_coefficient" in settings else None, learning_rate=1e-6, **settings
        )
        gradients: list[dict[str, Any]] = []

        def record(*_: object, updater: Updater = updater, gradients: list[dict[str, Any]] = gradients) -> None:
            named = updater.policy.named_parameters()
            gradients.append({name: value.grad.full_tensor().numpy() for name, value in named})  # type: ignore[union-attr]

        updater.optimizer.register_step_pre_hook(record)
        found.append((updater.step(own_mini_batches(seed=1), 1), gradients[0]))
    return found


def all_of_it(model_path: Path, folder: Path) -> tuple[Any, Any]:
    """What one start of the ranks does."""
    return train_and_save(model_path, folder), first_gradients(model_path)


def train_and_save(model_path: Path, folder: Path) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Two steps, a checkpoint, two more steps: figures, weights at the checkpoint, weights at the end."""
    updater = trained_updater(model_path)
    figures = train(updater, 1, 2)
    saved = {name: value.numpy() for name, value in gather(updater.policy, torch.float32).items()}
    checkpoints = Checkpoints(folder, kept=1)
    checkpoints.save(2, updater.policy, updater.optimizer)
    # Goes on while it is written.
    figures += train(updater, 3, 4)
    checkpoints.completed(wait=True)
    return figures, saved, {name: value.numpy() for name, value in gather(updater.policy, torch.float32).items()}


@pytest.fixture(scope="module")
def two_ranks(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """What rank 0 of two returned, and the folder with their checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoints")
    rank0, rank1 = on_ranks(2, all_of_it, model_path, folder)
    assert not isinstance(rank0, str), rank0
    assert [str(figures) for figures in rank1[0][0]] == [str(figures) for figures in rank0[0][0]]
    assert rank1[0][1:] == ({}, {})
    return folder, rank0


@pytest.mark.usefixtures("one_rank")
def test_two_ranks_train_as_one(model_path: Path, two_ranks: tuple[Path, Any], tmp_path: Path) -> None:
    _, ((figures, _, weights), _) = two_ranks
    alone, _, wanted = train_and_save(model_path, tmp_path / "alone")
    for found, expected in zip(figures, alone, strict=True):
        assert found.loss == pytest.approx(expected.loss, abs=1e-5)
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
        assert found.log_prob_difference_all == pytest.approx(expected.log_prob_difference_all, rel=1e-5)
    for name, value in wanted.items():
        # Adam divides by gradients that may be tiny, so that rounding shows in single weights.
        assert abs(weights[name] - value).max() < 2e-4, name


@pytest.mark.usefixtures("one_rank")
def test_every_algorithm_has_the_same_gradients_on_two_ranks(model_path: Path, two_ranks: tuple[Path, Any]) -> None:
    _, (_, both) = two_ranks
    for settings, (figures, found), (alone, wanted) in zip(ALGORITHMS, both, first_gradients(model_path), strict=True):
        scale = max(abs(gradient).max() for gradient in wanted.values())
        for name, gradient in wanted.items():
            assert abs(found[name] - gradient).max() < 1e-5 * scale, (settings, name)
        assert figures.loss == pytest.approx(alone.loss, abs=1e-6)
        assert figures.effective_sample_size == pytest.approx(alone.effective_sample_size, rel=1e-5)
        assert {lag: bucket["tokens"] for lag, bucket in figures.by_lag.items()} == {
            lag: bucket["tokens"] for lag, bucket in alone.by_lag.items()
        }


@pytest.mark.usefixtures("one_rank")
def test_a_checkpoint_of_two_ranks_goes_on_at_one(model_path: Path, two_ranks: tuple[Path, Any]) -> None:
    folder, ((figures, saved, weights), _) = two_ranks
    updater = trained_updater(model_path)
    assert Checkpoints(folder, kept=1).load_newest(updater.policy, updater.optimizer, at_most=2) == 2
    for name, value in full_tensors(updater.policy, torch.float32):
        torch.testing.assert_close(value, torch.from_numpy(saved[name]), atol=0, rtol=0)
    assert_optimizer_state(updater)
    going_on = train(updater, 3, 4)
    assert going_on[0].loss == pytest.approx(figures[2].loss, abs=1e-6)
    for name, value in full_tensors(updater.policy, torch.float32):
        torch.testing.assert_close(value, torch.from_numpy(weights[name]), atol=2e-4, rtol=0)


def assert_optimizer_state(updater: Updater) -> None:
    for parameter in updater.policy.parameters():
        state = updater.optimizer.state[parameter]
        # Two mini-batches a step, two steps.
        assert float(state["step"]) == 4
        second: Tensor = state["exp_avg_sq"].full_tensor()
        assert second.shape == parameter.shape


def reduce_and_broadcast() -> tuple[list[float], list[float], bytes]:
    rank = dist.get_rank()
    return all_sum([rank, 1]).tolist(), all_max([rank, -rank]).tolist(), broadcast(b"from zero" if rank == 0 else None)


def test_collectives_agree_on_all_ranks() -> None:
    assert on_ranks(2, reduce_and_broadcast) == [([1.0, 2.0], [1.0, 0.0], b"from zero")] * 2


def fail_on_rank_1() -> float:
    """Rank 1 raises; the seconds until rank 0's collective does."""
    if dist.get_rank() == 1:
        raise ValueError("the cause")
    started = time.monotonic()
    with pytest.raises(RuntimeError):
        all_sum([0.0])
    return time.monotonic() - started


def test_a_failing_rank_ends_the_others_at_once() -> None:
    seconds, cause = on_ranks(2, fail_on_rank_1)
    assert cause == "ValueError: the cause"
    assert seconds < DEADLINE / 4
