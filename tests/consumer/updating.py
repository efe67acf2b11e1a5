"""Steps of an updater whose every update is looked at: gradients as applied, weights as they were before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM

from stream_rl.config import ModelConfig, TrainerConfig
from stream_rl.consumer.batching import flatten, mini_batch_groups
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.model import full_tensors, log_probs_alone
from stream_rl.consumer.update import UpdateFigures, Updater
from stream_rl.sample import Group

CPU = torch.device("cpu")
NO_CLIPPING = 1e9
AGGREGATIONS = (
    {"aggregation": "token_mean"},
    {"aggregation": "sequence_mean"},
    {"aggregation": "sequence_mean", "policy_loss": "gspo"},
    {"aggregation": "constant", "aggregation_length": 50},
)
FROM_9 = {"trained_from": 9, "max_staleness": 4}

Tensors = dict[str, Tensor]


def save_moved(model_path: Path, folder: Path, *, seed: int) -> Path:
    """Writes the model with every weight moved a little into `folder`, for tests that need two that differ."""
    model = AutoModelForCausalLM.from_pretrained(model_path)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    return folder


def make_updater(model_path: Path, reference_path: Path | None = None, **settings: object) -> Updater:
    """An updater that clips no gradient, with a reference model where one is named."""
    chosen = TrainerConfig.model_validate({"max_grad_norm": NO_CLIPPING, **settings})
    policy, reference = (
        path and load_policy(ModelConfig(path=str(path)), CPU, chosen) for path in (model_path, reference_path)
    )
    assert policy is not None
    return Updater(policy, chosen, CPU, reference)


def step(
    updater: Updater, groups: list[Group], mini_batches: int = 1, max_staleness: int = 4
) -> tuple[UpdateFigures, list[Tensors], list[Tensors]]:
    """Runs one step from version 9; returns its figures, and every update's gradients and weights before it."""
    gradients: list[Tensors] = []
    weights: list[Tensors] = []
    names = [name.removeprefix("language_model.") for name, _ in updater.policy.named_parameters()]

    def record(*_: object) -> None:
        whole = [parameter.grad.full_tensor() for parameter in updater.policy.parameters()]  # type: ignore[union-attr]
        gradients.append({name: value.clone() for name, value in zip(names, whole, strict=True)})
        weights.append({name: value.clone() for name, value in full_tensors(updater.policy, torch.float32)})

    handle = updater.optimizer.register_step_pre_hook(record)
    dealt = mini_batch_groups(range(len(groups)), mini_batches)
    samples = [flatten([groups[n] for n in places], trainer_version=9, max_staleness=max_staleness) for places in dealt]
    figures = updater.step(samples, step=10)
    handle.remove()
    return figures, gradients, weights


def token_log_probs(updater: Updater, groups: list[Group]) -> dict[tuple[int, int], NDArray[np.float32]]:
    """Of every sample (group, index) the log-probs of its trained tokens, in order, as a step computes them."""
    samples = flatten(groups, trainer_version=9, max_staleness=4)
    found = np.full(len(samples.tokens), np.nan, np.float32)
    (passes,) = updater._passes([samples])
    for batch, log_probs in zip(passes, log_probs_alone(updater.policy, passes), strict=True):
        found[batch.places] = log_probs
    assert np.array_equal(~np.isnan(found), samples.carries_loss)
    names = [(sample.group_index, sample.index) for group in groups for sample in group.samples]
    pieces = np.split(found, np.cumsum(samples.lengths))
    return {name: piece[~np.isnan(piece)] for name, piece in zip(names, pieces, strict=False)}


def assert_same_tokens(
    found: dict[tuple[int, int], NDArray[np.float32]], wanted: dict[tuple[int, int], NDArray[np.float32]]
) -> None:
    """Each token's log-prob within 1e-5 nats."""
    assert found.keys() == wanted.keys()
    for name, log_probs in wanted.items():
        np.testing.assert_allclose(found[name], log_probs, atol=1e-5, rtol=0, err_msg=str(name))


def assert_same(found: Tensors, wanted: Tensors, tolerance: float = 1e-5) -> None:
    """Each tensor within `tolerance` of the largest value of all."""
    assert found.keys() == wanted.keys()
    scale = max(float(value.abs().max()) for value in wanted.values())
    for name, value in wanted.items():
        torch.testing.assert_close(found[name].double(), value.double(), atol=tolerance * scale, rtol=0, msg=name)
