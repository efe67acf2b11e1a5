"""Two ranks are one rank: gradients, checkpoints across world sizes, and a rank's failure ends the others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import DEADLINE, on_ranks
from trajectories import ragged_groups
from updating import AGGREGATIONS, assert_same_tokens, make_updater, token_log_probs

from stream_rl.config import ModelConfig, TrainerConfig
from stream_rl.consumer.batching import Samples, flatten, mini_batch_groups, share
from stream_rl.consumer.checkpoint import Checkpoints
from stream_rl.consumer.collectives import all_max, all_sum, broadcast, process_group
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.model import full_tensors
from stream_rl.consumer.update import Updater
from stream_rl.consumer.weights import gather
from stream_rl.sample import Group

CPU = torch.device("cpu")
ALGORITHMS = (
    *AGGREGATIONS,
    {"clip_against": "start", "correction": "sequence_mask"},
    {"kl_coefficient": 0.1, "kl_in": "reward", "kl_estimator": "k1", "turn_discount": 0.9},
)
LEDGER = b'{"1":[3,1],"2":[0,2]}'
SETTINGS = TrainerConfig(learning_rate=0.01, mini_batches=2, max_tokens_per_micro_batch=120, entropy_coefficient=0.01)


def trained_updater(model_path: Path) -> Updater:
    return Updater(load_policy(ModelConfig(path=str(model_path)), CPU), SETTINGS, CPU)


def train(updater: Updater, first: int, last: int) -> list[Any]:
    """Steps first..last, each rank on its share of the same groups; the figures of each."""
    return [updater.step(own_mini_batches(seed=step), step) for step in range(first, last + 1)]


def own_groups(seed: int) -> list[list[Group]]:
    """This rank's share of the same groups, one list a mini-batch."""
    groups = ragged_groups(5, seed=seed)
    mine = []
    for places in mini_batch_groups(range(len(groups)), SETTINGS.mini_batches):
        owners = share([1] * len(places), dist.get_world_size())
        mine.append([groups[n] for n, owner in zip(places, owners, strict=True) if owner == dist.get_rank()])
    return mine


def own_mini_batches(seed: int) -> list[Samples]:
    return [flatten(groups, trainer_version=9, max_staleness=4) for groups in own_groups(seed)]


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


class Whole(NamedTuple):
    """A trainer's state, whole, by the weights' names: numpy arrays that go from process to process."""

    weights: dict[str, Any]
    moments: dict[str, tuple[Any, Any, float]]

    @classmethod
    def of(cls, updater: Updater) -> Whole:
        """A collective; all ranks have all of it."""
        weights = {name: value.clone().numpy() for name, value in full_tensors(updater.policy, torch.float32)}
        moments = {}
        for name, parameter in updater.policy.named_parameters():
            state = updater.optimizer.state[parameter]
            first, second = (state[kind].full_tensor().clone().numpy() for kind in ("exp_avg", "exp_avg_sq"))
            moments[name] = (first, second, float(state["step"]))
        return cls(weights, moments)

    def assert_is(self, other: Whole) -> None:
        assert self.weights.keys() == other.weights.keys()
        assert self.moments.keys() == other.moments.keys()
        for name, value in other.weights.items():
            np.testing.assert_array_equal(self.weights[name], value, name)
        for name, (first, second, steps) in other.moments.items():
            np.testing.assert_array_equal(self.moments[name][0], first, name)
            np.testing.assert_array_equal(self.moments[name][1], second, name)
            assert self.moments[name][2] == steps == 4, name  # two mini-batches a step, two steps


class Life(NamedTuple):
    """Two steps, a checkpoint, two more: all steps' figures, the state at the checkpoint, the weights at the end."""

    figures: list[Any]
    saved: Whole
    weights: dict[str, Any]


class Resumed(NamedTuple):
    """A life from its checkpoint on: the step and the ledger that it found, the state, its figures, its weights."""

    step: int
    ledger: bytes
    state: Whole
    figures: list[Any]
    weights: dict[str, Any]


class Both(NamedTuple):
    """What one start of two ranks does: a life, the algorithms' gradients, log-probs, and another's life resumed."""

    life: Life
    gradients: list[tuple[Any, dict[str, Any]]]
    log_probs: list[dict[tuple[int, int], Any]]
    resumed: Resumed


def all_of_it(model_path: Path, folder: Path, of_one: Path) -> Both:
    log_probs = own_log_probs(model_path)
    return Both(train_and_save(model_path, folder), first_gradients(model_path), log_probs, resume(model_path, of_one))


def own_log_probs(model_path: Path) -> list[dict[tuple[int, int], Any]]:
    """Of this rank's samples, packed and padded."""
    groups = [group for part in own_groups(seed=3) for group in part]
    updaters = (make_updater(model_path, packing=packing, max_tokens_per_micro_batch=120) for packing in (True, False))
    return [token_log_probs(updater, groups) for updater in updaters]


def resume(model_path: Path, folder: Path) -> Resumed:
    updater, checkpoints = trained_updater(model_path), Checkpoints(folder, kept=1)
    ledger = checkpoints.ledger()
    step = checkpoints.load_newest(updater.policy, updater.optimizer, at_most=2)
    state = Whole.of(updater)
    figures = train(updater, 3, 4)
    return Resumed(step, ledger, state, figures, gathered(updater))


def gathered(updater: Updater) -> dict[str, Any]:
    return {name: value.clone().numpy() for name, value in gather(updater.policy, torch.float32).items()}


def train_and_save(model_path: Path, folder: Path) -> Life:
    updater = trained_updater(model_path)
    figures = train(updater, 1, 2)
    saved = Whole.of(updater)
    checkpoints = Checkpoints(folder, kept=1)
    checkpoints.save(2, updater.policy, updater.optimizer, LEDGER)
    # Goes on while it is written.
    figures += train(updater, 3, 4)
    checkpoints.completed(wait=True)
    return Life(figures, saved, gathered(updater))


@pytest.fixture(scope="module")
def alone(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Life]:
    """A life of one rank, and the folder with its checkpoint."""
    folder = tmp_path_factory.mktemp("alone")
    with process_group(0, 1, f"file://{folder}/rendezvous", CPU, DEADLINE):
        return folder / "checkpoints", train_and_save(model_path, folder / "checkpoints")


@pytest.fixture(scope="module")
def two_ranks(
    model_path: Path, alone: tuple[Path, Life], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, tuple[Both, Both]]:
    """What two ranks returned, and the folder with their checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoints")
    first, second = on_ranks(2, all_of_it, model_path, folder, alone[0])
    assert not isinstance(first, str), first
    assert [str(figures) for figures in second.life.figures] == [str(figures) for figures in first.life.figures]
    assert second.life.weights == second.resumed.weights == {}
    return folder, (first, second)


def assert_same_life(figures: list[Any], weights: dict[str, Any], wanted: list[Any], end: dict[str, Any]) -> None:
    for found, expected in zip(figures, wanted, strict=True):
        assert found.loss == pytest.approx(expected.loss, abs=1e-5)
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
        assert found.log_prob_difference_all == pytest.approx(expected.log_prob_difference_all, rel=1e-5)
    assert weights.keys() == end.keys()
    for name, value in end.items():
        # Adam divides by gradients that may be tiny, so that rounding shows in single weights.
        np.testing.assert_allclose(weights[name], value, atol=2e-4, rtol=0, err_msg=name)


def test_two_ranks_train_as_one(alone: tuple[Path, Life], two_ranks: Any) -> None:
    life, wanted = two_ranks[1][0].life, alone[1]
    assert_same_life(life.figures, life.weights, wanted.figures, wanted.weights)


@pytest.mark.usefixtures("one_rank")
def test_every_token_has_the_same_log_prob_on_two_ranks_packed_or_padded(model_path: Path, two_ranks: Any) -> None:
    first, second = two_ranks[1]
    packed, padded = own_log_probs(model_path)
    assert len(packed) == 20
    assert 0 < len(first.log_probs[0]) < 20
    for number in (0, 1):
        both = first.log_probs[number] | second.log_probs[number]
        assert_same_tokens(both, packed)
        assert_same_tokens(both, padded)


@pytest.mark.usefixtures("one_rank")
def test_every_algorithm_has_the_same_gradients_on_two_ranks(model_path: Path, two_ranks: Any) -> None:
    both = two_ranks[1][0].gradients
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
def test_a_checkpoint_of_two_ranks_goes_on_at_one(model_path: Path, two_ranks: Any) -> None:
    folder, (first, _) = two_ranks
    assert_goes_on(resume(model_path, folder), first.life)


def test_a_checkpoint_of_one_rank_goes_on_at_two(alone: tuple[Path, Life], two_ranks: Any) -> None:
    first, second = two_ranks[1]
    assert_goes_on(first.resumed, alone[1])
    second.resumed.state.assert_is(alone[1].saved)


def assert_goes_on(resumed: Resumed, life: Life) -> None:
    assert (resumed.step, resumed.ledger) == (2, LEDGER)
    resumed.state.assert_is(life.saved)
    assert_same_life(resumed.figures, resumed.weights, life.figures[2:], life.weights)


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
