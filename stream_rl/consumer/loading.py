"""A model from its files to shards, a transformer block at a time.

    config ─► model without memory ─► each block: read, shard ─► embeddings, norm, head: read, shard ─► checks

Invariants: where the files have the tensors under the model's own names, a rank never holds more than its shards and
one unit; weights are float32 whatever `model.dtype` computes in, and so are gradients' sums: at the usual learning
rates an update is smaller than bfloat16's rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import orjson
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from stream_rl.config import ModelConfig, TrainerConfig
from stream_rl.consumer.attention import set_attention
from stream_rl.consumer.model import PREFIX, Policy
from stream_rl.consumer.model_check import check_log_probs, settle_packing
from stream_rl.consumer.vision import Sight
from stream_rl.errors import ModelError
from stream_rl.multimodal.family import load_family

__all__ = ["load_policy"]

logger = logging.getLogger(__name__)

Read = Callable[[str], Tensor]
"""Gives a tensor of the model's files by its name."""


def load_policy(config: ModelConfig, device: torch.device, settings: TrainerConfig | None = None) -> Policy:
    """Loads the model and shards it over the ranks of the default process group. A collective.

    Args:
        config: the model.
        device: where the shards live.
        settings: how it is placed: `replicas`, `activation_checkpointing`, `frozen`, `packing`.

    Raises:
        ModelError: there is no such model, it is not a causal language model, or it cannot be trained as the settings
            say.
    """
    settings, dtype = settings or TrainerConfig(), getattr(torch, config.dtype)
    try:
        model, read = _without_memory(config.path)
        if read is None:
            model = _kind(model.config).from_pretrained(config.path, dtype=torch.float32)
        family = load_family(config.path)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"cannot load model.path={config.path!r} as a causal language model: {error}") from error
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        set_attention(model, "eager")  # the others leave the cap out
    _drop_nothing(model)
    if settings.activation_checkpointing:
        _recompute(model)
    _freeze(model, settings.frozen)
    sight = None if family is None else Sight(model, family)
    policy = shard(Policy(model, sight), dtype, device, replicas=settings.replicas, read=read)
    check_log_probs(policy, dtype, device)
    settle_packing(policy, dtype, device, wanted=settings.packing)
    # After a forward pass without a backward one the root's weights are still whole: nobody may take them for shards.
    assert isinstance(policy, FSDPModule)
    policy.reshard()
    return policy


def shard(
    policy: Policy, dtype: torch.dtype, device: torch.device, *, replicas: int = 1, read: Read | None = None
) -> Policy:
    """FSDP2: every transformer block is a unit, what is left (embeddings, norm, head) is the root's.

    Args:
        policy: float32, the same on every rank; without memory where `read` gives its weights.
        dtype: what forward and backward compute in; gradients are summed in float32.
        device: where the shards live.
        replicas: copies of the sharded model; a copy's shards are on neighbouring ranks.
        read: gives weights by their names in the language model.
    """
    mesh = _mesh(device, replicas)
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    blocks = set(policy.language_model._no_split_modules or ())
    tied = set(getattr(policy.language_model, "all_tied_weights_keys", None) or ())
    # Blocks within blocks come first: a unit has what no unit within it has.
    for name, module in reversed(list(policy.named_modules())):
        if type(module).__name__ in blocks:
            _fill(module, name.removeprefix(PREFIX) + ".", device, read, tied)
            fully_shard(module, mesh=mesh, mp_policy=precision)
    _fill(policy.language_model, "", device, read, tied)
    policy.language_model.tie_weights()
    # What the root is given stays as it is: temperatures are float32 in a micro-batch, too.
    fully_shard(policy, mesh=mesh, mp_policy=replace(precision, cast_forward_inputs=False))
    policy.train()
    return policy


def _kind(config: PretrainedConfig) -> type[Any]:
    """transformers' loader for models that see, or that read text only."""
    return AutoModelForCausalLM if getattr(config, "vision_config", None) is None else AutoModelForImageTextToText


def _mesh(device: torch.device, replicas: int) -> DeviceMesh:
    ranks = torch.distributed.get_world_size()
    if replicas == 1:
        return init_device_mesh(device.type, (ranks,))
    return init_device_mesh(device.type, (replicas, ranks // replicas), mesh_dim_names=("replica", "shard"))


def _drop_nothing(model: PreTrainedModel) -> None:
    """Takes all dropout out: the engine samples without it, and log-probs must be of what sampled."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):  # attn_dropout, residual_dropout, resid_pdrop, ...
            if isinstance(value, float) and ("dropout" in name or "pdrop" in name):
                setattr(module, name, 0.0)


def _recompute(model: PreTrainedModel) -> None:
    try:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    except ValueError as error:
        raise ModelError(f"trainer.activation_checkpointing=true cannot be had: {error}") from error


def _freeze(model: PreTrainedModel, patterns: list[str]) -> None:
    names = dict(model.named_parameters())
    for pattern in patterns:
        frozen = [name for name in names if fnmatchcase(name, pattern)]
        if not frozen:
            raise ModelError(f"trainer.frozen: {pattern!r} is the name of no weight; one is {next(iter(names))!r}")
        for name in frozen:
            names[name].requires_grad_(False)
    if not any(value.requires_grad for value in names.values()):
        raise ModelError(f"trainer.frozen={patterns} leaves nothing to train")


def _without_memory(path: str) -> tuple[PreTrainedModel, Read | None]:
    """The model on the meta device but for its buffers, and what reads its weights: None if the files have others."""
    config = AutoConfig.from_pretrained(path)
    with torch.device("meta"):
        model: PreTrainedModel = _kind(config).from_config(config, dtype=torch.float32)
    files = _files(path)
    persistent = model.state_dict().keys() - getattr(model, "all_tied_weights_keys", {}).keys()
    if getattr(config, "quantization_config", None) is not None or not persistent <= files.keys():
        logger.info("the files of %s name other tensors than the model: every rank loads all of them", path)
        return model, None

    def read(name: str) -> Tensor:
        try:
            with safe_open(files[name], "pt") as file:
                found: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{files[name]} is damaged, copy it anew: {error}") from error
        return found

    _make_buffers(model, read, persistent)
    if cached_file(path, "generation_config.json", _raise_exceptions_for_missing_entries=False):
        model.generation_config = GenerationConfig.from_pretrained(path)
    return model, read


def _files(path: str) -> dict[str, str]:
    """Of every tensor, the file that has it."""
    found = {
        name: cached_file(path, name, _raise_exceptions_for_missing_entries=False)
        for name in (SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME)
    }
    if (index := found[SAFE_WEIGHTS_INDEX_NAME]) is not None:
        with open(index, "rb") as file:
            places = orjson.loads(file.read())["weight_map"]
        whole = {name: cached_file(path, name) for name in set(places.values())}
        return {tensor: str(whole[name]) for tensor, name in places.items()}
    if (single := found[SAFE_WEIGHTS_NAME]) is None:
        return {}
    with safe_open(single, "pt") as file:
        return dict.fromkeys(file.keys(), single)


def _make_buffers(model: PreTrainedModel, read: Read, persistent: set[str]) -> None:
    """Buffers in memory: read where the files have them, computed by the model (rotary frequencies) elsewhere."""
    for parameter in model.parameters():
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]  # what transformers leaves as it is
    for name, buffer in list(model.named_buffers()):
        owner, _, last = name.rpartition(".")
        value = read(name).to(buffer.dtype) if name in persistent else torch.zeros_like(buffer, device="cpu")
        value._is_hf_initialized = name in persistent  # type: ignore[attr-defined]
        model.get_submodule(owner)._buffers[last] = value
    model.initialize_weights()  # type: ignore[no-untyped-call]


def _fill(module: nn.Module, prefix: str, device: torch.device, read: Read | None, tied: set[str]) -> None:
    """Puts what is not sharded yet on the device: weights as read, buffers as they are; tied weights are left."""
    if read is None:
        module.to(device)
        return
    for part, owner in module.named_modules():
        where = prefix + part + "." * bool(part)
        for name, parameter in owner._parameters.items():
            if parameter is not None and parameter.is_meta and where + name not in tied:
                value = read(where + name).to(device, torch.float32)
                owner._parameters[name] = nn.Parameter(value, requires_grad=parameter.requires_grad)
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                owner._buffers[name] = buffer.to(device)
