"""The reference model is loaded when it is needed, frozen, and refused when it speaks another language."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stream_rl.config import Config
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.reference import load_reference
from stream_rl.errors import ModelError

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_rank")


def with_trainer(config: Config, **trainer: object) -> Config:
    return Config.parse({**config.model_dump(), "trainer": {**config.trainer.model_dump(), **trainer}})


def test_none_without_a_coefficient(config: Config) -> None:
    assert load_reference(config, load_policy(config.model, CPU), CPU) is None


def test_the_initial_model_by_default_and_frozen(config: Config) -> None:
    policy = load_policy(config.model, CPU)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    reference = load_reference(with_trainer(config, kl_coefficient=0.1), policy, CPU)
    assert reference is not None
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    initial = AutoModelForCausalLM.from_pretrained(config.model.path).state_dict()
    for name, value in reference.language_model.state_dict().items():
        torch.testing.assert_close(value.full_tensor(), initial[name], atol=0, rtol=0)


def test_another_vocabulary_or_no_model_is_refused(config: Config, tmp_path: Path) -> None:
    other = AutoConfig.from_pretrained(config.model.path, vocab_size=40)
    AutoModelForCausalLM.from_config(other).save_pretrained(tmp_path / "other")
    policy = load_policy(config.model, CPU)
    for path, message in ((tmp_path / "other", "has a vocabulary of 40"), (tmp_path / "none", "cannot load trainer.")):
        chosen = with_trainer(config, kl_coefficient=0.1, reference_path=str(path))
        with pytest.raises(ModelError, match=message):
            load_reference(chosen, policy, CPU)
