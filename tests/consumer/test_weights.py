"""Published folders: whole on any disk, whatever the tokenizer's files are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stream_rl.config import ModelConfig
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.weights import WeightFolders
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
