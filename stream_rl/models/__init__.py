"""Small models for machines without a hub. A model is a Hugging Face folder: config, safetensors, tokenizer, template.

Importing this imports no torch; making a model does.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from stream_rl.errors import ModelError

__all__ = ["MODELS", "make_model"]

MODELS = {"smollm2": "make_smollm2", "tiny-text": "make_tiny_text"}


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
    module = importlib.import_module(f"stream_rl.models.{name.replace('-', '_')}")
    try:
        getattr(module, MODELS[name])(out)
    except OSError as error:
        raise ModelError(f"make-model {name}: {out} cannot be written: {error.strerror or error}") from error
