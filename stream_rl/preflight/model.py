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
        check_weights(Path(path), model)
    if (reference := config.trainer.reference_path) is not None:
        _load_config("trainer.reference_path", reference)


def _load_config(setting: str, path: str) -> PretrainedConfig:
    _check_exists(setting, path)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{setting}={path!r} holds no model that loads: {_first_line(error)}") from error
    return config


def check_weights(folder: Path, config: PretrainedConfig) -> None:
    """Reads the head of every safetensors file and compares the shapes with those of the model. Raises ModelError."""
    wanted = _shapes(folder, config)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"model.path={str(folder)!r} holds no weights (*.safetensors): copy or convert them")
    for file in files:
        try:
            with safe_open(file, framework="pt") as weights:
                found = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ModelError(f"model.path={str(folder)!r}: {file.name} is damaged, copy it anew ({error})") from error
        for name, shape in found.items():
            if wanted.get(name, shape) != shape:
                raise ModelError(
                    f"model.path={str(folder)!r}: {name} in {file.name} is {shape}, and config.json wants "
                    f"{wanted[name]}: they are of different models"
                )


def _shapes(folder: Path, config: PretrainedConfig) -> dict[str, tuple[int, ...]]:
    kind = AutoModelForCausalLM if getattr(config, "vision_config", None) is None else AutoModelForImageTextToText
    try:
        with torch.device("meta"):
            model = kind.from_config(config)  # type: ignore[no-untyped-call]
    except (ValueError, RuntimeError, TypeError) as error:
        reason = _first_line(error)
        raise ModelError(f"model.path={str(folder)!r} is no causal language model: {reason}") from error
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


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
