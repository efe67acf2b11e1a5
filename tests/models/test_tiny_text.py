"""The tiny model and its tokenizer: what they promise to everything that trains on them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stream_rl.errors import ModelError
from stream_rl.models import MODELS, make_model
from stream_rl.models.tiny_text import WORDS, make_tiny_text, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def test_there_are_32_words() -> None:
    assert len(WORDS) == len(TOKENIZER) == 32


def test_the_template_is_chatml_and_its_newlines_are_tokens(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    messages = [{"role": "user", "content": "guess"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nguess<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    start, user, newline, guess, end, assistant = tokenizer.convert_tokens_to_ids(
        ["<|im_start|>", "user", "\n", "guess", "<|im_end|>", "assistant"]
    )
    assert ids == [start, user, newline, guess, end, newline, start, assistant, newline]
    assert end == tokenizer.eos_token_id
    assert tokenizer.decode(ids) == text


def test_the_model_has_the_size_that_learns(tmp_path: Path) -> None:
    make_tiny_text(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    config = model.config
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size, config.head_dim) == (128, 2, 32, 16)
    assert model.dtype == torch.float32
    assert not config.tie_word_embeddings
    assert config.eos_token_id == model.generation_config.eos_token_id == WORDS.index("<|im_end|>")
    assert model.get_input_embeddings().weight.std().item() == pytest.approx(0.05, rel=0.1)


def test_the_seed_decides_the_weights_and_leaves_torch_alone(tiny_model: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    make_tiny_text(tmp_path / "same", seed=0, width=64)
    make_tiny_text(tmp_path / "other", seed=1, width=64)
    assert torch.equal(torch.random.get_rng_state(), before)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (tiny_model, tmp_path / "same")]
    assert weights[0] == weights[1] != (tmp_path / "other" / "model.safetensors").read_bytes()


def test_a_wrong_name_or_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="smollm2, tiny-text"):
        make_model("tiny", tmp_path / "new")
    (tmp_path / "file").touch()
    for used in (tmp_path, tmp_path / "file"):
        with pytest.raises(ModelError, match="is there already"):
            make_model("tiny-text", used)
    assert set(MODELS) == {"smollm2", "tiny-text", "tiny-vlm", "tiny-vlm-qwen2.5"}
