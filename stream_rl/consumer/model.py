"""The policy: a Hugging Face causal language model under FSDP2, asked only for what the loss needs.

Hidden states become logits at the places that predict a trained token and nowhere else, and a chunk of places at a
time, so that no logits tensor is larger than `LOGITS_PER_CHUNK` numbers. Master weights and gradients' sums are float32
whatever `model.dtype` computes in: at the usual learning rates an update is smaller than bfloat16's rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.hub import cached_file

from stream_rl.config import ModelConfig
from stream_rl.consumer.batching import MicroBatch
from stream_rl.consumer.loss import log_probs_and_entropy
from stream_rl.errors import ModelError

LOGITS_PER_CHUNK = 1 << 25
_PREFIX = "language_model."


class Policy(nn.Module):
    """The model that is trained. Its forward gives log-probs and entropies of a micro-batch's k trained tokens."""

    def __init__(self, language_model: PreTrainedModel) -> None:
        super().__init__()
        self.language_model = language_model

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies, float32 (k,) each, of softmax(logits / temperature)."""
        positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device).unsqueeze(0)
        # Rows are padded on the right, where causal attention never looks: no mask, and the fast causal kernel.
        states = self.language_model.base_model(batch.tokens, position_ids=positions, use_cache=False).last_hidden_state
        predictors = states.flatten(0, 1)[batch.predictors]
        head: nn.Module = self.language_model.get_output_embeddings()  # type: ignore[no-untyped-call]
        rows = max(1, LOGITS_PER_CHUNK // self.language_model.config.get_text_config().vocab_size)
        if len(predictors) <= rows:
            return _score(head, predictors, batch.targets, batch.temperatures)
        chunks = zip(
            *(torch.split(part, rows) for part in (predictors, batch.targets, batch.temperatures)), strict=True
        )
        # Recomputing a chunk's logits in the backward pass costs one more matrix product and saves keeping them.
        pieces = [checkpoint(_score, head, *chunk, use_reentrant=False) for chunk in chunks]
        return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def load_policy(config: ModelConfig, device: torch.device) -> Policy:
    """Loads the model and shards it over the ranks of the default process group, a unit per transformer block.

    Raises:
        ModelError: there is no such model, or it is not a causal language model.
    """
    try:
        language_model = AutoModelForCausalLM.from_pretrained(config.path, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot load model.path={config.path!r} as a causal language model: {error}") from error
    return shard(Policy(language_model), getattr(torch, config.dtype), device)


def shard(policy: Policy, dtype: torch.dtype, device: torch.device) -> Policy:
    """FSDP2 over all ranks: every block is a unit, what is left (embeddings, norm, head) is the root's.

    Args:
        policy: float32, the same on every rank.
        dtype: what forward and backward compute in; gradients are summed in float32.
        device: where the shards live.
    """
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    blocks = set(policy.language_model._no_split_modules or ())
    for module in list(policy.modules()):
        if type(module).__name__ in blocks:
            fully_shard(module, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)
    policy.train()
    return policy


def pick_device(setting: str, rank: int) -> torch.device:
    """`trainer.device` as a device: "auto" is CUDA where there is one."""
    if setting == "cpu" or (setting == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", rank % torch.cuda.device_count())


def model_folder(path: str) -> Path:
    """The folder of a model that was loaded: `path` itself, or where the hub's copy of that name lies."""
    config = cached_file(path, "config.json")
    assert config is not None
    return Path(config).parent


def full_tensors(policy: Policy, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Every weight, whole, on this device, under the names a Hugging Face checkpoint has; tied ones once.

    A collective: every rank must exhaust it in the same order.
    """
    tied = set(getattr(policy.language_model, "all_tied_weights_keys", None) or ())
    for name, value in policy.state_dict().items():
        exported = name.removeprefix(_PREFIX)
        if exported not in tied:
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            yield exported, whole.detach().to(dtype)


def _score(head: nn.Module, states: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    return log_probs_and_entropy(head(states), targets, temperatures)
