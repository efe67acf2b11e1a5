"""Published folders: whole on any disk, whatever the tokenizer's files are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stream_rl.config import ModelConfig
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.weights import WeightFolders
from stream_rl.errors import WeightUpdateFailed
from stream_rl.sample import WeightVersion

CPU = torch.device("cpu")
VERSION = WeightVersion(3)
pytestmark = pytest.mark.usefixtures("one_rank")


def write(model_path: Path, folder: Path) -> Path:
    """The folder of a version, which must load."""
    folders = WeightFolders(folder, load_policy(ModelConfig(path=str(model_path)), CPU), torch.float32, str(model_path))
    folders.write(VERSION)
    AutoModelForCausalLM.from_pretrained(folders.path(VERSION))
    return folders.path(VERSION)


def test_a_disk_without_links_gets_copies(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, place: str) -> None:
        raise OSError("invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    assert AutoTokenizer.from_pretrained(write(model_path, tmp_path)).encode("guess 7")


def test_a_tokenizer_with_several_chat_templates_keeps_them(model_path: Path, tmp_path: Path) -> None:
    several = shutil.copytree(model_path, tmp_path / "several")
    tokenizer = AutoTokenizer.from_pretrained(several)
    templates = {"default": tokenizer.chat_template, "tool_use": "{{ messages }}"}
    tokenizer.chat_template = templates
    tokenizer.save_pretrained(several)
    assert AutoTokenizer.from_pretrained(write(several, tmp_path / "weights")).chat_template == templates


def reshaped(model_path: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A copy of the model whose checkpoint was changed after the policy was loaded from the first."""
    other = shutil.copytree(model_path, folder)
    weights = load_file(other / "model.safetensors")
    change(weights)
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    return other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.update(extra=torch.zeros(1)), "no weight extra, which the checkpoint has"),
        (
            lambda weights: weights.pop("model.norm.weight"),
            r"a weight model\.norm\.weight, which the checkpoint does not",
        ),
        (lambda weights: weights.update({"model.norm.weight": torch.zeros(3)}), r"model\.norm\.weight has shape"),
    ],
)
def test_nothing_is_published_that_engines_do_not_know(
    model_path: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    policy = load_policy(ModelConfig(path=str(model_path)), CPU)
    other = reshaped(model_path, tmp_path / "other", change)
    folders = WeightFolders(tmp_path / "weights", policy, torch.float32, str(other))
    with pytest.raises(WeightUpdateFailed, match=message):
        folders.write(VERSION)
    assert not folders.path(VERSION).exists()


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.rotary_emb.inv_freq"])
def test_what_old_checkpoints_have_beyond_the_model_is_not_asked_for(
    model_path: Path, tmp_path: Path, name: str
) -> None:
    policy = load_policy(ModelConfig(path=str(model_path)), CPU)
    other = reshaped(model_path, tmp_path / "other", lambda weights: weights.update({name: torch.zeros(4)}))
    folders = WeightFolders(tmp_path / "weights", policy, torch.float32, str(other))
    folders.write(VERSION)
    assert folders.path(VERSION).exists()
