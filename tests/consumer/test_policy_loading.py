"""A model from its files: a unit at a time where the names agree, whole where not, and placed as the settings say."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor, Replicate, Shard
from trajectories import ragged_groups
from transformers import AutoModelForCausalLM, LlamaConfig
from updating import Tensors, assert_same, make_updater, save_moved, step

from stream_rl.config import Config, ModelConfig, TrainerConfig
from stream_rl.consumer import loading
from stream_rl.consumer.batching import flatten, share
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.model import full_tensors
from stream_rl.consumer.update import Updater
from stream_rl.errors import ConfigError, ModelError

CPU = torch.device("cpu")


def loaded(path: Path, **settings: Any) -> Tensors:
    """The weights of a policy that was loaded from `path`."""
    policy = load_policy(ModelConfig(path=str(path)), CPU, TrainerConfig(**settings))
    assert not any(value.is_meta for value in (*policy.parameters(), *policy.buffers()))
    assert all(isinstance(value, DTensor) for value in policy.parameters())
    return dict(full_tensors(policy, torch.float32))


def assert_equal(found: Tensors, wanted: Tensors) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=0, rtol=0, msg=name)


@pytest.fixture
def whole_loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every model that is read by transformers itself."""
    paths: list[str] = []
    read = AutoModelForCausalLM.from_pretrained

    def recording(path: str, **settings: Any) -> Any:
        paths.append(path)
        return read(path, **settings)

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", recording)
    return paths


@pytest.mark.usefixtures("one_rank")
def test_a_model_is_read_without_ever_being_whole(model_path: Path, whole_loads: list[str]) -> None:
    wanted = load_file(model_path / "model.safetensors")
    assert_equal(loaded(model_path), wanted)
    assert not whole_loads


@pytest.mark.usefixtures("one_rank")
def test_files_in_parts_half_precision_and_tied_weights(tmp_path: Path, whole_loads: list[str]) -> None:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="6KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    wanted = {name: value.float() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    assert_equal(loaded(tmp_path), wanted)
    assert not whole_loads


@pytest.mark.usefixtures("one_rank")
def test_files_of_another_kind_are_left_to_transformers(
    model_path: Path, tmp_path: Path, whole_loads: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    save_moved(model_path, tmp_path, seed=1)
    wanted = load_file(tmp_path / "model.safetensors")
    # Nothing there has the names that the model has.
    torch.save(wanted, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    whole_loads.clear()
    with caplog.at_level(logging.INFO, "stream_rl"):
        assert_equal(loaded(tmp_path), wanted)
    assert whole_loads == [str(tmp_path)]
    assert "name other tensors than the model" in caplog.text


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("parts", ["1GB", "40KB"])
def test_damaged_files_are_told(model_path: Path, tmp_path: Path, parts: str) -> None:
    AutoModelForCausalLM.from_pretrained(model_path).save_pretrained(tmp_path, max_shard_size=parts)
    damaged = max(tmp_path.glob("*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(ModelError, match=str(tmp_path)):
        loaded(tmp_path)


@pytest.mark.usefixtures("one_rank")
def test_frozen_weights_stay_and_the_others_are_trained_as_before(model_path: Path) -> None:
    groups = ragged_groups(3, seed=2)
    whole = make_updater(model_path, learning_rate=0.01)
    partly = make_updater(model_path, learning_rate=0.01, frozen=["model.layers.0.*", "*.embed_tokens.weight"])
    before = {name: value.clone() for name, value in full_tensors(partly.policy, torch.float32)}
    samples = [flatten(groups, trainer_version=9, max_staleness=4)]
    for updater in (whole, partly):
        updater.step(samples, 1)
    after, reference = (dict(full_tensors(updater.policy, torch.float32)) for updater in (partly, whole))
    for name, value in after.items():
        if name.startswith("model.layers.0.") or "embed_tokens" in name:
            torch.testing.assert_close(value, before[name], atol=0, rtol=0)
        else:
            # The norm of fewer gradients clips nothing here, so that one step is the same.
            torch.testing.assert_close(value, reference[name], atol=1e-5, rtol=0)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frozen": ["model.visual.*"]}, "'model.visual.*' is the name of no weight"),
        ({"frozen": ["*"]}, "leaves nothing to train"),
    ],
)
def test_what_cannot_be_frozen_is_said(model_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message.replace("*", r"\*")):
        loaded(model_path, **settings)


@pytest.mark.usefixtures("one_rank")
def test_activation_checkpointing_changes_nothing(model_path: Path) -> None:
    groups = ragged_groups(3, seed=3)
    (kept, (wanted,), _), (recomputed, (found,), _) = (
        step(make_updater(model_path, activation_checkpointing=flag), groups) for flag in (False, True)
    )
    assert_same(found, wanted, tolerance=1e-6)
    assert recomputed.loss == pytest.approx(kept.loss, abs=1e-7)


@pytest.mark.usefixtures("one_rank")
def test_activation_checkpointing_keeps_less(model_path: Path) -> None:
    sizes = []
    for flag in (False, True):
        updater = make_updater(model_path, activation_checkpointing=flag)
        kept: list[int] = []

        def note(value: torch.Tensor, kept: list[int] = kept) -> torch.Tensor:
            kept.append(value.untyped_storage().nbytes())
            return value

        with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
            updater.step([flatten(ragged_groups(3, seed=3), trainer_version=9, max_staleness=4)], 1)
        sizes.append(sum(kept))
    assert sizes[1] < sizes[0]


Way = tuple[str, Any, dict[str, Any]]


def one_step(model_path: Path, **settings: Any) -> Way:
    """A step on this rank's share of four groups: how weights are placed, the figures, the gradients applied."""
    updater = make_updater(model_path, **settings)
    gradients: dict[str, Any] = {}

    def record(*_: object) -> None:
        for name, value in updater.policy.named_parameters():
            gradients[name] = value.grad.full_tensor().numpy()  # type: ignore[union-attr]

    updater.optimizer.register_step_pre_hook(record)
    owners = share([1] * 4, dist.get_world_size())
    mine = [group for group, owner in zip(ragged_groups(4, seed=6), owners, strict=True) if owner == dist.get_rank()]
    figures = updater.step([flatten(mine, trainer_version=9, max_staleness=4)], 1)
    parameter = next(updater.policy.parameters())
    assert isinstance(parameter, DTensor)
    return str(parameter.placements), figures, gradients


def two_ways(model_path: Path) -> list[Way]:
    """On two ranks: one sharded copy, and two whole ones."""
    return [one_step(model_path, replicas=replicas, world_size=2, activation_checkpointing=True) for replicas in (1, 2)]


def test_replicas_of_shards_train_as_one_rank(model_path: Path) -> None:
    both, other = on_ranks(2, two_ways, model_path)
    assert not isinstance(both, str), both
    assert not isinstance(other, str), other
    (alone,) = on_ranks(1, one_step, model_path)
    assert not isinstance(alone, str), alone
    _, wanted, gradients = alone
    scale = max(np.abs(gradient).max() for gradient in gradients.values())
    assert [placement for placement, *_ in both] == [str((Shard(0),)), str((Replicate(), Shard(0)))]
    for _, figures, found in both:
        assert figures.loss == pytest.approx(wanted.loss, abs=1e-6)
        assert figures.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-5)
        for name, gradient in gradients.items():
            assert np.abs(found[name] - gradient).max() < 1e-5 * scale, name


def test_replicas_must_divide_the_ranks(config: Config) -> None:
    tree = config.model_dump()
    tree["trainer"] |= {"world_size": 3, "replicas": 2}
    with pytest.raises(ConfigError, match="cannot be divided into replicas=2"):
        Config.parse(tree)


@pytest.mark.usefixtures("one_rank")
def test_bfloat16_computes_narrow_and_sums_wide(model_path: Path) -> None:
    policy = load_policy(ModelConfig(path=str(model_path), dtype="bfloat16"), CPU)
    assert {value.dtype for value in policy.parameters()} == {torch.float32}
    seen = set()
    for layer in policy.language_model.model.layers:
        layer.mlp.register_forward_hook(lambda module, given, found: seen.add(found.dtype))
    updater = Updater(policy, TrainerConfig(), CPU)
    dtypes = set()
    updater.optimizer.register_step_pre_hook(
        lambda *_: dtypes.update(value.grad.dtype for value in policy.parameters() if value.grad is not None)
    )
    updater.step([flatten(ragged_groups(2, seed=3), trainer_version=9, max_staleness=4)], 1)
    assert seen == {torch.bfloat16}
    assert dtypes == {torch.float32}
