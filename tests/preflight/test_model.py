"""Models that are not whole, or not what they say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from stream_rl.config import Config
from stream_rl.errors import ModelError
from stream_rl.preflight.model import check_model

Make = Callable[..., Config]


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to be spoiled."""
    return Path(shutil.copytree(tiny_model, tmp_path / "mödel 漢"))


def refusal(config: Make, model: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_model(config(model={"path": str(model)}))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"model.path={str(model)!r}")


def change_settings(model: Path, **changed: object) -> None:
    settings = orjson.loads((model / "config.json").read_bytes())
    (model / "config.json").write_bytes(orjson.dumps(settings | changed))


def rewrite_weights(model: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(model / "model.safetensors")
    change(weights)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


NORM = "model.norm.weight"


def test_a_whole_model_passes_in_any_folder(config: Make, model: Path) -> None:
    check_model(config(model={"path": str(model)}))


@pytest.mark.parametrize("kept", [0, 4, 100, 50_000])
def test_weights_that_were_cut_short(config: Make, model: Path, kept: int) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    assert refusal(config, model).startswith(": model.safetensors is damaged, copy it anew")


def test_weights_that_are_none(config: Make, model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"\xff" * 1000)
    assert refusal(config, model).startswith(": model.safetensors is damaged, copy it anew")
    (model / "model.safetensors").unlink()
    assert refusal(config, model).startswith(" holds no weights (*.safetensors)")


@pytest.mark.parametrize("changed", [{"hidden_size": 32}, {"vocab_size": 16}])
def test_weights_of_another_model(config: Make, model: Path, changed: dict[str, int]) -> None:
    change_settings(model, **changed)
    assert "they are of different models" in refusal(config, model)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", " holds no model that loads: "),
        ("{}", " holds no model that loads: "),
        ('{"model_type": "zork"}', " holds no model that loads: "),
        ('{"model_type": "t5"}', " is no causal language model: "),
    ],
)
def test_a_configuration_of_no_such_model(config: Make, model: Path, content: str, message: str) -> None:
    (model / "config.json").write_text(content)
    assert refusal(config, model).startswith(message)


def test_a_reference_that_is_nowhere(config: Make, model: Path) -> None:
    settings = {"path": str(model)}
    with pytest.raises(ModelError, match=r"trainer\.reference_path='nowhere' is no folder"):
        check_model(config(model=settings, trainer={"reference_path": "nowhere", "kl_coefficient": 0.1}))


def test_weights_without_one_of_the_models(config: Make, model: Path) -> None:
    rewrite_weights(model, lambda weights: weights.pop(NORM))
    assert refusal(config, model) == f": {NORM} is in none of its *.safetensors: 1 weights are missing"


def test_weights_under_other_names_are_left_to_transformers(config: Make, model: Path) -> None:
    rewrite_weights(model, lambda weights: weights.update({"fused": weights.pop(NORM)}))
    check_model(config(model={"path": str(model)}))


class TestReference:
    """`model` is the reference, spoiled; the model itself is whole."""

    @staticmethod
    def refusal(config: Make, reference: Path) -> str:
        with pytest.raises(ModelError) as caught:
            check_model(config(trainer={"reference_path": str(reference), "kl_coefficient": 0.1}))
        message = str(caught.value)
        assert "\n" not in message
        assert message.startswith(f"trainer.reference_path={str(reference)!r}")
        return message.removeprefix(f"trainer.reference_path={str(reference)!r}")

    def test_a_whole_one_passes(self, config: Make, model: Path) -> None:
        check_model(config(trainer={"reference_path": str(model), "kl_coefficient": 0.1}))

    def test_one_of_another_size_passes(self, config: Make, tiny_model: Path, tmp_path: Path) -> None:
        wider = AutoConfig.from_pretrained(tiny_model, hidden_size=32)
        AutoModelForCausalLM.from_config(wider).save_pretrained(tmp_path / "wider")
        check_model(config(trainer={"reference_path": str(tmp_path / "wider"), "kl_coefficient": 0.1}))

    def test_without_weights(self, config: Make, model: Path) -> None:
        (model / "model.safetensors").unlink()
        assert self.refusal(config, model).startswith(" holds no weights (*.safetensors)")

    def test_with_damaged_weights(self, config: Make, model: Path) -> None:
        (model / "model.safetensors").write_bytes(b"\xff" * 1000)
        assert self.refusal(config, model).startswith(": model.safetensors is damaged, copy it anew")

    def test_with_a_weight_missing(self, config: Make, model: Path) -> None:
        rewrite_weights(model, lambda weights: weights.pop(NORM))
        assert self.refusal(config, model) == f": {NORM} is in none of its *.safetensors: 1 weights are missing"

    def test_with_weights_of_another_model(self, config: Make, model: Path) -> None:
        change_settings(model, hidden_size=32)
        assert "they are of different models" in self.refusal(config, model)

    def test_with_another_vocabulary(self, config: Make, model: Path) -> None:
        change_settings(model, vocab_size=16)
        assert self.refusal(config, model).startswith(" has a vocabulary of 16, model.path one of ")

    def test_that_takes_no_images_as_the_model_does(
        self, config: Make, model: Path, tiny_vlm: Path, tmp_path: Path
    ) -> None:
        vocab_size = AutoConfig.from_pretrained(tiny_vlm).get_text_config().vocab_size
        change_settings(model, vocab_size=vocab_size)
        trainer = {"reference_path": str(model), "kl_coefficient": 0.1}
        with pytest.raises(ModelError, match=r"trainer\.reference_path=.* does not take images as model\.path, a qwen"):
            check_model(config(model={"path": str(tiny_vlm)}, trainer=trainer))
