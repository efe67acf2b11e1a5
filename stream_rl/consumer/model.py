"""The policy: a Hugging Face causal language model under FSDP2, asked only for what the loss needs.

    micro-batch ─► hidden states of every token ─► those that predict a trained token ─► their log-probs, in chunks

A model is called in one place, `Policy._call`, with what a micro-batch (micro_batch.py) has. Hidden states become
logits at the places that predict a trained token and nowhere else, and never all at once (head.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.utils.hub import cached_file

from stream_rl.consumer.attention import attention_of, packed_kernel, sequence_arguments, set_attention
from stream_rl.consumer.head import Head, log_probs_of_states
from stream_rl.consumer.micro_batch import MicroBatch
from stream_rl.consumer.vision import Sight

__all__ = ["PREFIX", "Policy", "full_tensors", "log_probs_alone", "model_folder", "pick_device"]

PREFIX = "language_model."


class Policy(nn.Module):
    """The model that is trained. Its forward gives log-probs and entropies of a micro-batch's k trained tokens.

    `packed` says which micro-batches it takes: one row of sequences end to end, or a padded row each. `sight` is how a
    model that sees takes images; None for one that reads text only.
    """

    def __init__(self, language_model: PreTrainedModel, sight: Sight | None = None) -> None:
        super().__init__()
        self.language_model = language_model
        self.sight = sight
        self.packed = False
        self._padded_attention = attention_of(language_model)

    def pack(self, dtype: torch.dtype, device: torch.device) -> None:
        """From here on takes packed micro-batches, computed in `dtype`. Raises AttentionUnsupported."""
        set_attention(self.language_model, packed_kernel(dtype, device))
        self.packed = True

    def pad(self) -> None:
        """From here on takes padded micro-batches."""
        set_attention(self.language_model, self._padded_attention)
        self.packed = False

    def forward(self, batch: MicroBatch, *, own_logits: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies, float32 (k,) each, of softmax(logits / temperature).

        Args:
            batch: on this device, of the kind that `packed` says.
            own_logits: take the model's own logits, whole, to check by.
        """
        if own_logits:
            logits = self._call(self.language_model, batch).logits.flatten(0, 1)[batch.predictors].float()
            distribution = torch.log_softmax(logits / batch.temperatures.unsqueeze(1), dim=-1)
            entropies = -(distribution.exp() * distribution).sum(-1)
            return distribution.gather(1, batch.targets.unsqueeze(1)).squeeze(1), entropies
        states = self._call(self.language_model.base_model, batch).last_hidden_state
        return log_probs_of_states(
            self._head(), states.flatten(0, 1)[batch.predictors], batch.targets, batch.temperatures
        )

    def _call(self, model: nn.Module, batch: MicroBatch) -> Any:
        more = sequence_arguments(self.language_model, batch.lengths, batch.tokens.device) if self.packed else {}
        if self.sight is not None:
            more |= self.sight.arguments(batch.tokens, batch.positions, batch.images)
        else:
            more |= {"input_ids": batch.tokens, "position_ids": batch.positions}
        return model(use_cache=False, **more)

    def _head(self) -> Head:
        config = self.language_model.config.get_text_config()
        head: nn.Linear = self.language_model.get_output_embeddings()  # type: ignore[no-untyped-call]
        scale = getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0)
        return Head(head.weight, head.bias, scale, getattr(config, "final_logit_softcapping", None))


@torch.no_grad()
def log_probs_alone(policy: Policy, batches: Sequence[MicroBatch]) -> list[Tensor]:
    """Log-probs of passes that nothing is learned from, float32 (k,) each. A collective."""
    found = [policy(batch)[0] for batch in batches]
    if isinstance(policy, FSDPModule):
        # Without a backward pass the root's weights stay whole, which is memory that training can have.
        policy.reshard()
    return found


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

    A collective: every rank must exhaust it in the same order. With one rank and the dtype that they have, they may be
    the very weights that are trained: whoever keeps them over an update copies them.
    """
    tied = set(getattr(policy.language_model, "all_tied_weights_keys", None) or ())
    for name, value in policy.state_dict().items():
        exported = name.removeprefix(PREFIX)
        if exported not in tied:
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            yield exported, whole.detach().to(dtype)
