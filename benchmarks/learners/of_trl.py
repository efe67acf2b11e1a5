"""TRL's: `GRPOTrainer._compute_loss` on micro-batches of a fixed number of rows, each padded to its own longest.

What surrounds it in TRL (generation, data loaders, gathering of metrics over processes) is left out. Rows come in the
order that they were sampled in, as TRL takes them. The same clipping and the same fused AdamW follow as in ours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from learners.learner import Learner
from learners.work import CLIP_HIGH, CLIP_LOW, GROUP_SIZE, TEMPERATURE, Setup
from stream_rl.consumer.advantage import group_advantages
from stream_rl.consumer.batching import rewards
from stream_rl.sample import Group


class Trl(Learner):
    """Micro-batches of `rows` rows, as `per_device_train_batch_size` would say."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._rows = 1
        model = AutoModelForCausalLM.from_pretrained(setup.model, dtype=torch.float32).to(self.device)
        narrow = setup.dtype == "bfloat16"
        arguments = GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=setup.device == "cpu", bf16=narrow, report_to=[], beta=0.0,
            per_device_train_batch_size=GROUP_SIZE, num_generations=GROUP_SIZE, temperature=TEMPERATURE,
            loss_type="dapo", epsilon=CLIP_LOW, epsilon_high=CLIP_HIGH, gradient_checkpointing=False,
        )  # fmt: skip
        self._trainer = GRPOTrainer(
            model, lambda **_: [], arguments, Dataset.from_list([{"prompt": "1"}] * GROUP_SIZE),
            processing_class=AutoTokenizer.from_pretrained(setup.model),
        )  # fmt: skip
        self._trainer.current_gradient_accumulation_steps = 1
        self._model = model.train()
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-12, betas=(0.9, 0.95), fused=True)

    def take(self, rows: int) -> None:
        """From here on micro-batches have so many rows."""
        self._rows = rows

    def train(self, groups: list[Group]) -> float:
        """A step of one update, its gradient accumulated over micro-batches."""
        total = 0.0
        for inputs in self._micro_batches(groups):
            with self._trainer.compute_loss_context_manager():  # of the precision that was asked for
                loss = self._trainer._compute_loss(self._model, inputs)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total

    def _micro_batches(self, groups: list[Group]) -> Iterator[dict[str, Tensor]]:
        samples = [sample for group in groups for sample in group.samples]
        advantages = torch.from_numpy(group_advantages(np.stack([rewards(group) for group in groups]))).float().ravel()
        tokens = sum(sample.response_length for sample in samples)
        for start in range(0, len(samples), self._rows):
            rows = samples[start : start + self._rows]
            prompts = [torch.tensor(sample.prompt_tokens) for sample in rows]
            answers = [torch.tensor(sample.response) for sample in rows]
            inputs = {
                "prompt_ids": _padded(prompts, "left").long(),
                "prompt_mask": _padded([torch.ones_like(row) for row in prompts], "left").long(),
                "completion_ids": _padded(answers).long(),
                "completion_mask": _padded([torch.ones_like(row) for row in answers]).long(),
                "old_per_token_logps": _padded([torch.tensor(sample.rollout_log_probs) for sample in rows]),
                "advantages": advantages[start : start + self._rows],
                "num_items_in_batch": torch.tensor(tokens),
            }
            yield {name: value.to(self.device) for name, value in inputs.items()}


def _padded(rows: list[Tensor], side: str = "right") -> Tensor:
    return pad_sequence(rows, batch_first=True, padding_side=side)
