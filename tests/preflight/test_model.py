"""Models that are not whole, or not what they say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

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
    settings = orjson.loads((model / "config.json").read_bytes())
    (model / "config.json").write_bytes(orjson.dumps(settings | changed))
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
