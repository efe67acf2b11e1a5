"""The model: it must be there, load as a causal language model, and be large enough for the run."""

from __future__ import annotations

from pathlib import Path

import httpx
import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig

from stream_rl.config import Config
from stream_rl.errors import ConfigError, ModelError

__all__ = ["check_model"]

SECONDS_FOR_HUB = 5.0


def check_model(config: Config) -> None:
    """There must be a whole model with positions for rollout.max_context_len, and the reference that the loss asks for.

    Raises:
        ModelError, ConfigError: there is not.
    """
    path = config.model.path
    model = _load_config("model.path", path)
    positions = getattr(model.get_text_config(), "max_position_embeddings", None)
    if positions is not None and config.rollout.max_context_len > positions:
        raise ConfigError(
            f"rollout.max_context_len={config.rollout.max_context_len} is more than the {positions} positions of "
            f"model.path={path!r}: lower it"
        )
    if Path(path).is_dir():
        check_weights("model.path", Path(path), model)
    if (reference := config.trainer.reference_path) is not None:
        _check_reference(reference, model)


def _check_reference(path: str, model: PretrainedConfig) -> None:
    """It may be of another kind and size than the model, but must read and write the same tokens, and see what it sees.

    Raises ModelError.
    """
    setting = "trainer.reference_path"
    reference = _load_config(setting, path)
    ours, theirs = (config.get_text_config().vocab_size for config in (model, reference))
    if ours != theirs:
        raise ModelError(f"{setting}={path!r} has a vocabulary of {theirs}, model.path one of {ours}: name another")
    if getattr(model, "vision_config", None) is not None and reference.model_type != model.model_type:
        raise ModelError(
            f"{setting}={path!r} is a {reference.model_type}, which does not take images as model.path, a "
            f"{model.model_type}, does: name a {model.model_type}"
        )
    if Path(path).is_dir():
        check_weights(setting, Path(path), reference)


def _load_config(setting: str, path: str) -> PretrainedConfig:
    _check_exists(setting, path)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{setting}={path!r} holds no model that loads: {_first_line(error)}") from error
    return config


def check_weights(setting: str, folder: Path, config: PretrainedConfig) -> None:
    """Compares names and shapes of the weights with the model's; reads only the heads of the safetensors files.

    Where the files name weights that the model has not, transformers may make its own of them: none counts as missing.

    Raises ModelError, which names `setting`.
    """
    where = f"{setting}={str(folder)!r}"
    wanted, spare = _shapes(where, config)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{where} holds no weights (*.safetensors): copy or convert them")
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as weights:
                shapes = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{where}: {file.name} is damaged, copy it anew ({error})") from error
        for name, shape in shapes.items():
            if wanted.get(name, shape) != shape:
                raise ModelError(
                    f"{where}: {name} in {file.name} is {shape}, and config.json wants {wanted[name]}: they are of "
                    "different models"
                )
        found |= shapes
    if found.keys() <= wanted.keys() and (missing := sorted(wanted.keys() - spare - found.keys())):
        raise ModelError(f"{where}: {missing[0]} is in none of its *.safetensors: {len(missing)} weights are missing")


def _shapes(where: str, config: PretrainedConfig) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """The shape of every weight of the model by name, and the names that a file may lack: of twins, of mere buffers."""
    kind = AutoModelForCausalLM if getattr(config, "vision_config", None) is None else AutoModelForImageTextToText
    try:
        with torch.device("meta"):
            model = kind.from_config(config)  # type: ignore[no-untyped-call]
    except (ValueError, RuntimeError, TypeError) as error:
        raise ModelError(f"{where} is no causal language model: {_first_line(error)}") from error
    twins = getattr(model, "all_tied_weights_keys", None) or {}
    spare = {*twins, *twins.values(), *(name for name, _ in model.named_buffers())}
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}, spare


def _check_exists(setting: str, path: str) -> None:
    """Answers within seconds where transformers would first try an unreachable hub again and again."""
    if Path(path).is_dir():
        return
    try:
        if not isinstance(try_to_load_from_cache(path, "config.json"), str):
            HfApi().model_info(path, timeout=SECONDS_FOR_HUB)
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise ModelError(
            f"{setting}={path!r} is no folder, and the Hugging Face hub does not give it ({_first_line(error)}): "
            "name a model's folder, or write a small one with `stream-rl make-model`"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
