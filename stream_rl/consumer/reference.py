"""The reference model: frozen, and what a divergence is measured from."""

from __future__ import annotations

import torch

from stream_rl.config import Config
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.model import Policy
from stream_rl.errors import ModelError

__all__ = ["load_reference"]


def load_reference(config: Config, policy: Policy, device: torch.device) -> Policy | None:
    """The model of `trainer.reference_path`, sharded like the policy; None when `trainer.kl_coefficient` is 0.

    Args:
        config: without a path, `model.path`: the model that the run began with, also after a resume.
        policy: what is trained; both must give probabilities to the same tokens.
        device: where the shards live.

    Raises:
        ModelError: there is no such model, it has another vocabulary, or it does not see what the policy sees.
    """
    if not config.trainer.kl_coefficient:
        return None
    path = config.trainer.reference_path or config.model.path
    try:
        placement = config.trainer.model_copy(update={"activation_checkpointing": False, "frozen": []})
        reference = load_policy(config.model.model_copy(update={"path": path}), device, placement)
    except ModelError as error:
        raise ModelError(f"cannot load trainer.reference_path={path!r}: {error}") from error
    kind, its_kind = (str(model.language_model.config.model_type) for model in (policy, reference))
    if policy.sight is not None and kind != its_kind:
        raise ModelError(
            f"trainer.reference_path={path!r} is a {its_kind}, which does not take images as model.path, a {kind}, "
            f"does: name a {kind}"
        )
    ours, theirs = (model.language_model.config.get_text_config().vocab_size for model in (policy, reference))
    if ours != theirs:
        raise ModelError(f"trainer.reference_path={path!r} has a vocabulary of {theirs}, model.path one of {ours}")
    return reference.requires_grad_(False)
