"""Packed is padded: log-probs and gradients, whatever the model's attention; and who is padded instead, and why."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import HEADS, PACKABLE, PADDED, save_random
from safetensors.torch import load_file
from torch.distributed.fsdp import FSDPModule
from trajectories import ragged_groups
from transformers import AutoModelForCausalLM, Qwen3Config
from transformers.utils import ModelOutput
from updating import assert_same, assert_same_tokens, make_updater, step, token_log_probs

from stream_rl.config import ModelConfig, TrainerConfig
from stream_rl.consumer import attention, model_check
from stream_rl.consumer.attention import PACKED, Sequences, attention_of, sequence_arguments, set_attention
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.model import Policy
from stream_rl.consumer.sender import tensor_specs
from stream_rl.consumer.weights import engine_shapes, gather
from stream_rl.engine.publish_group import check_tensors
from stream_rl.errors import ModelError

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_rank")


@pytest.mark.parametrize(("kind", "settings"), PACKABLE.values(), ids=PACKABLE)
def test_packed_equals_padded_and_one_by_one(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    path, groups = save_random(kind, settings, tmp_path), ragged_groups(3, seed=1)
    results = []
    for packing, size in ((True, 10_000), (True, 60), (False, 10_000), (False, 1)):
        updater = make_updater(path, packing=packing, max_tokens_per_micro_batch=size, entropy_coefficient=0.1)
        assert updater.policy.packed is packing
        results.append((token_log_probs(updater, groups), *step(updater, groups)))
    log_probs, wanted, (expected,), _ = results[-1]
    for found, figures, (gradients,), _ in results[:-1]:
        assert_same_tokens(found, log_probs)
        assert_same(gradients, expected)
        assert figures.loss == pytest.approx(wanted.loss, abs=1e-6)
        assert figures.log_prob_difference_all == pytest.approx(wanted.log_prob_difference_all, rel=1e-5)
        assert figures.entropy == pytest.approx(wanted.entropy, rel=1e-5)


@pytest.mark.parametrize(("kind", "settings", "reason"), PADDED.values(), ids=PADDED)
def test_who_cannot_be_packed_is_padded_with_the_reason(
    kind: str, settings: dict[str, Any], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, groups = save_random(kind, settings, tmp_path), ragged_groups(2, seed=1)
    with caplog.at_level(logging.WARNING, "stream_rl"):
        updaters = [make_updater(path, max_tokens_per_micro_batch=size) for size in (10_000, 1)]
    assert "samples are padded, not packed" in caplog.text
    assert reason in caplog.text
    (_, (together,), _), (_, (alone,), _) = (step(updater, groups) for updater in updaters)
    assert_same(together, alone)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [family[:2] for name, family in {**PACKABLE, **PADDED}.items()],
    ids=[*PACKABLE, *PADDED],
)
def test_blocks_are_units_and_weights_go_out_as_they_came_in(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    path = save_random(kind, settings, tmp_path)
    policy = load_policy(ModelConfig(path=str(path)), CPU)
    assert sum(isinstance(module, FSDPModule) for module in policy.modules()) >= 3  # two blocks and the root
    weights, files = gather(policy, torch.float32), load_file(path / "model.safetensors")
    check_tensors(tensor_specs(weights), engine_shapes(policy, str(path)), "float32")
    for name, value in weights.items():
        torch.testing.assert_close(value, files[name], atol=0, rtol=0, msg=name)


def test_what_reaches_from_one_sequence_to_the_next_is_noticed(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(lengths: Any, device: torch.device) -> Sequences:
        return sequences.__func__(Sequences, [sum(lengths)], device)  # type: ignore[attr-defined]

    sequences = Sequences.of
    policy = load_policy(ModelConfig(path=str(model_path)), CPU, TrainerConfig(packing=False))
    monkeypatch.setattr(Sequences, "of", whole)
    reason = model_check.settle_packing(policy, torch.float32, CPU, wanted=True)
    assert reason is not None
    assert "log-probs differ by" in reason
    assert not policy.packed
    assert attention_of(policy.language_model) == "sdpa"


def test_attention_that_cannot_be_set_is_a_mistake_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    model = AutoModelForCausalLM.from_config(Qwen3Config(**HEADS))
    monkeypatch.setattr(type(model), "set_attn_implementation", lambda *_: None)
    with pytest.raises(ModelError, match="Qwen3ForCausalLM keeps the attention 'sdpa' instead of 'eager'"):
        set_attention(model, "eager")


def test_an_unknown_change_of_the_logits_is_refused(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Policy._call

    def louder(self: Policy, model: torch.nn.Module, batch: Any) -> ModelOutput:
        found = call(self, model, batch)
        if "logits" in found:
            found.logits = found.logits * 2.0
        return found

    monkeypatch.setattr(Policy, "_call", louder)
    with pytest.raises(ModelError, match="changes its logits in an unknown way"):
        load_policy(ModelConfig(path=str(model_path)), CPU)


def test_similar_sequences_attend_in_one_call() -> None:
    runs = Sequences.of((1000, 800, 700, 200, 60, 31, 2), CPU).runs
    assert [(run.start, run.end, run.rows, run.width) for run in runs] == [
        (0, 1800, 2, 1000), (1800, 2500, 1, 700), (2500, 2700, 1, 200), (2700, 2793, 3, 60),
    ]  # fmt: skip
    assert runs[0].places is not None
    assert runs[0].places.tolist() == [*range(1000), *range(1000, 1800)]
    assert runs[1].places is None


def test_flash_attention_is_told_where_sequences_begin(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "is_flash_attn_2_available", lambda: True)
    cuda = torch.device("cuda")
    assert attention.packed_kernel(torch.bfloat16, cuda) == "flash_attention_2"
    assert attention.packed_kernel(torch.float32, cuda) == PACKED
    assert attention.packed_kernel(torch.bfloat16, CPU) == PACKED
    policy = load_policy(ModelConfig(path=str(model_path)), CPU, TrainerConfig(packing=False))
    policy.language_model.config._attn_implementation_internal = "flash_attention_2"
    arguments = sequence_arguments(policy.language_model, (5, 3, 1), CPU)
    assert arguments["cu_seq_lens_q"].tolist() == arguments["cu_seq_lens_k"].tolist() == [0, 5, 8, 9]
    assert arguments["cu_seq_lens_q"].dtype == torch.int32
    assert arguments["max_length_q"] == arguments["max_length_k"] == 5
