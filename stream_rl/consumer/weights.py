"""Published weights on disk: one Hugging Face folder a version, for engines that load from a path they share.

    weights/.static/       config, tokenizer: written once
    weights/40.1/          model.safetensors, and links to the static files

Invariants: a version's folder appears by one rename, whole; no folder that an engine may still load is removed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, dtype
from transformers import AutoProcessor, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from stream_rl.consumer.checkpoint import publish_folder
from stream_rl.consumer.model import Policy, full_tensors, model_folder
from stream_rl.consumer.sender import tensor_specs
from stream_rl.engine.publish_group import check_tensors, checkpoint_shapes
from stream_rl.errors import ModelError
from stream_rl.sample import WeightVersion

__all__ = ["WeightFolders", "engine_shapes", "gather"]

_STATIC = ".static"
INVERSE_FREQUENCIES = r"rotary_emb\.inv_freq$"
"""In old checkpoints; models compute them."""


class WeightFolders:
    """The folders of published versions. Only rank 0 touches the disk; every rank takes part in the gathering."""

    def __init__(self, folder: Path, policy: Policy, dtype: dtype, model_path: str) -> None:
        """Writes config and tokenizer. Raises ModelError when the model has no tokenizer."""
        self.folder = folder
        self._shapes = engine_shapes(policy, model_path)
        self._policy = policy
        self._dtype = dtype
        if dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            _write_static(folder / _STATIC, policy.language_model, model_path, dtype)

    def path(self, version: WeightVersion) -> Path:
        """Where a version's folder is."""
        return self.folder / str(version)

    def write(self, version: WeightVersion) -> None:
        """Writes the policy's weights as they are now. A collective.

        Raises WeightUpdateFailed on rank 0: names, shapes or dtypes are not those that engines know.
        """
        self.write_to(self.path(version))

    def write_to(self, final: Path) -> None:
        """Writes the policy as a whole Hugging Face folder to any place. A collective. Raises as `write`."""
        tensors = gather(self._policy, self._dtype)
        if dist.get_rank() == 0:
            check_tensors(tensor_specs(tensors), self._shapes, str(self._dtype).removeprefix("torch."))
            partial = final.parent / f".partial-{final.name}"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
            shutil.copytree(self.folder / _STATIC, partial, copy_function=_link, dirs_exist_ok=True)
            publish_folder(partial, final)

    def prune(self, needed: Collection[WeightVersion]) -> None:
        """Removes every version's folder but the needed ones. Rank 0 only."""
        keep = {str(version) for version in needed}
        for path in self.folder.iterdir():
            if path.name not in keep and path.name != _STATIC:
                shutil.rmtree(path)


def gather(policy: Policy, dtype: dtype) -> dict[str, Tensor]:
    """Every weight, whole, on rank 0's CPU, as its checkpoints have it; empty on the other ranks. A collective."""
    here = dist.get_rank() == 0
    weights = {name: tensor.cpu().contiguous() for name, tensor in full_tensors(policy, dtype) if here}
    # Some models (Qwen2.5-VL) have other names in their checkpoints, which are what engines know.
    renamed: dict[str, Tensor] = revert_weight_conversion(policy.language_model, weights) if here else {}
    return renamed


def engine_shapes(policy: Policy, model_path: str) -> dict[str, tuple[int, ...]]:
    """Name to shape of every weight that engines load from the model's checkpoint.

    Left out are the twins of tied ones, and what the model's class says a checkpoint may have beyond it, except
    weights that its patterns fit by chance: GPT-2's `attn.bias` fits `c_attn.bias`.
    """
    model = policy.language_model
    own = {name for name, _ in model.named_parameters()}
    twins = set(getattr(model, "all_tied_weights_keys", None) or ())
    spare = [
        re.compile(pattern) for pattern in (*(model._keys_to_ignore_on_load_unexpected or ()), INVERSE_FREQUENCIES)
    ]
    return {
        name: shape
        for name, shape in checkpoint_shapes(model_folder(model_path)).items()
        if name not in twins and (name in own or not any(pattern.search(name) for pattern in spare))
    }


def _link(path: str, place: str) -> None:
    try:
        os.link(path, place)
    except OSError:  # another disk, or one that knows no links
        shutil.copyfile(path, place)


def _write_static(folder: Path, model: PreTrainedModel, model_path: str, dtype: dtype) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        sees = getattr(model.config, "vision_config", None) is not None
        # A processor is a tokenizer and what reads images.
        reader = (AutoProcessor if sees else AutoTokenizer).from_pretrained(model_path)
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path={model_path!r} has no tokenizer that loads: {error}") from error
    reader.save_pretrained(partial)
    config = type(model.config).from_dict({**model.config.to_dict(), "dtype": str(dtype).removeprefix("torch.")})
    config.save_pretrained(partial)
    if isinstance(model.generation_config, GenerationConfig):
        model.generation_config.save_pretrained(partial)
    publish_folder(partial, folder)
