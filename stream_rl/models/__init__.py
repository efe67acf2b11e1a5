"""Small models for machines without a hub. A model is a Hugging Face folder: config, safetensors, tokenizer, template.

Importing this imports no torch; making a model does.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from stream_rl.errors import ModelError

__all__ = ["MODELS", "make_model"]

MODELS = {
    "smollm2": "smollm2:make_smollm2",
    "tiny-text": "tiny_text:make_tiny_text",
    "tiny-vlm": "tiny_vlm:make_tiny_vlm",
    "tiny-vlm-qwen2.5": "tiny_vlm:make_tiny_vlm_qwen2_5",
}
"""Each model's module in this folder, and its function there."""


def make_model(name: str, out: Path) -> None:
    """Writes the model called `name` (a key of `MODELS`) into the folder `out`, which must be absent or empty.

    Raises:
        ModelError: there is no such model, the folder holds files or cannot be written, or the package with the
            weights is not installed.
    """
    if name not in MODELS:
        raise ModelError(f"make-model {name!r}: no such model; there are {', '.join(MODELS)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"make-model {name}: {out} is there already: remove it or name another folder")
    file, _, function = MODELS[name].partition(":")
    module = importlib.import_module(f"stream_rl.models.{file}")
    try:
        getattr(module, function)(out)
    except OSError as error:
        raise ModelError(f"make-model {name}: {out} cannot be written: {error.strerror or error}") from error
