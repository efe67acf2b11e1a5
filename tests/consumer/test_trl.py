"""Loss and gradients equal those of TRL's GRPO trainer wherever the definitions coincide: at temperature 0.7, over
several turns with observations between them, which TRL leaves out by its tool mask.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trajectories import ragged_groups
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from trl import GRPOConfig, GRPOTrainer
from updating import Tensors, assert_same, make_updater, save_moved, step

from stream_rl.consumer.advantage import group_advantages
from stream_rl.consumer.batching import rewards
from stream_rl.sample import Group

TEMPERATURE, LENGTH, CAP, BETA = 0.7, 50, 1.2, 0.3
pytestmark = pytest.mark.usefixtures("one_rank")

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "token mean": ({}, {"loss_type": "dapo"}),
    "sequence mean": ({"aggregation": "sequence_mean"}, {"loss_type": "grpo"}),
    "constant": ({"aggregation": "constant", "aggregation_length": LENGTH}, {"loss_type": "dr_grpo"}),
    "GSPO": (
        {"policy_loss": "gspo", "aggregation": "sequence_mean"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    "divergence": ({"kl_coefficient": BETA}, {"loss_type": "dapo", "beta": BETA, "use_bias_correction_kl": False}),
    "weighted divergence": (
        {"kl_coefficient": BETA, "kl_in": "weighted_loss"},
        {"loss_type": "dapo", "beta": BETA, "use_bias_correction_kl": True},
    ),
    "truncated": (
        {"clip_against": "start", "correction": "truncated", "importance_cap": CAP},
        {"loss_type": "dapo", "vllm_importance_sampling_mode": "token_truncate"},
    ),
}


def trl_loss(model: PreTrainedModel, path: Path, groups: list[Group], folder: Path, **settings: Any) -> Tensor:
    """The loss of TRL's trainer on these groups."""
    arguments = GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=4,
        num_generations=4, temperature=TEMPERATURE, max_completion_length=LENGTH, epsilon=0.1, epsilon_high=0.15,
        **{"beta": 0.0, **settings},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model, lambda **_: [], arguments, Dataset.from_list([{"prompt": "1"}] * 4),
        processing_class=AutoTokenizer.from_pretrained(path),
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    inputs = trl_inputs(groups)
    mask = inputs["tool_mask"]
    ids, attended = (
        torch.cat([inputs[f"prompt_{part}"], inputs[f"completion_{part}"]], dim=1) for part in ("ids", "mask")
    )
    if "vllm_importance_sampling_mode" in settings:
        with torch.no_grad():
            start, *_ = trainer._get_per_token_logps_and_entropies(model, ids, attended, mask.shape[1])
        ratio = torch.exp((start - inputs.pop("old_per_token_logps")) * mask)
        inputs["importance_sampling_ratio"] = ratio.clamp(max=CAP)
        trainer.use_vllm = True
    if trainer.beta:
        with torch.no_grad():
            reference = trainer.ref_model
            reference.load_state_dict(AutoModelForCausalLM.from_pretrained(path).state_dict())
            inputs["ref_per_token_logps"], *_ = trainer._get_per_token_logps_and_entropies(
                reference, ids, attended, mask.shape[1]
            )
    loss: Tensor = trainer._compute_loss(model, inputs)
    return loss


def trl_inputs(groups: list[Group]) -> dict[str, Tensor]:
    """The groups as TRL's trainer wants them: prompts padded on the left, completions on the right."""
    samples = [sample for group in groups for sample in group.samples]

    def padded(arrays: list[np.ndarray], side: str = "right") -> Tensor:
        return pad_sequence([torch.tensor(array) for array in arrays], batch_first=True, padding_side=side)

    masks = padded([sample.loss_mask for sample in samples]).long()
    return {
        "prompt_ids": padded([sample.prompt_tokens for sample in samples], "left").long(),
        "prompt_mask": padded([np.ones(len(sample.prompt_tokens), int) for sample in samples], "left"),
        "completion_ids": padded([sample.response for sample in samples]).long(),
        "completion_mask": padded([np.ones(sample.response_length, int) for sample in samples]),
        "tool_mask": masks,
        "old_per_token_logps": padded([sample.rollout_log_probs for sample in samples]),
        "advantages": torch.tensor(group_advantages(np.stack([rewards(group) for group in groups]))).float().ravel(),
        "num_items_in_batch": masks.sum(),
    }


@pytest.fixture(scope="module")
def moved_path(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy, away from the initial model, which is the reference."""
    return save_moved(model_path, tmp_path_factory.mktemp("moved"), seed=6)


@pytest.mark.parametrize(("ours", "theirs"), CASES.values(), ids=CASES)
def test_equals_trl(
    model_path: Path, moved_path: Path, tmp_path: Path, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    groups = ragged_groups(3, seed=8)
    for group in groups:
        for sample in group.samples:
            sample.temperature = TEMPERATURE
    reference = model_path if "kl_coefficient" in ours else None
    updater = make_updater(moved_path, reference, clip_low=0.1, clip_high=0.15, max_tokens_per_micro_batch=90, **ours)
    figures, (found,), _ = step(updater, groups, max_staleness=9)

    model = AutoModelForCausalLM.from_pretrained(moved_path)
    loss = trl_loss(model, model_path, groups, tmp_path, **theirs)
    loss.backward()
    wanted: Tensors = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert figures.loss == pytest.approx(float(loss.detach()), abs=1e-6)
    assert_same(found, wanted, tolerance=2e-5)
