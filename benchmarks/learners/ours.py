"""Our trainer's step, as the trainer process takes it: sharded over a process group of one."""

from __future__ import annotations

import tempfile

import torch.distributed as dist

from learners.learner import Learner
from learners.work import CLIP_HIGH, CLIP_LOW, Setup
from stream_rl.config import ModelConfig, TrainerConfig
from stream_rl.consumer.batching import flatten
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.update import Updater
from stream_rl.sample import Group


class Ours(Learner):
    """Packed, or padded by `packing=False`; `recompute` is activation checkpointing."""

    def __init__(self, setup: Setup, *, packing: bool = True, recompute: bool = False) -> None:
        super().__init__(setup)
        store = f"{tempfile.mkdtemp()}/store"
        backend = "gloo" if self.device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)
        settings = TrainerConfig(
            learning_rate=1e-12, packing=packing, max_tokens_per_micro_batch=setup.tokens, clip_low=CLIP_LOW,
            clip_high=CLIP_HIGH, activation_checkpointing=recompute,
        )  # fmt: skip
        policy = load_policy(ModelConfig(path=str(setup.model), dtype=setup.dtype), self.device, settings)
        self._updater = Updater(policy, settings, self.device)

    def train(self, groups: list[Group]) -> float:
        """A step of one mini-batch."""
        return self._updater.step([flatten(groups, trainer_version=0, max_staleness=0)], 1).loss
