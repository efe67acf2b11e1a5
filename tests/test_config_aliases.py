"""slime's names of settings mean ours; its custom-config file loads as it is; two names of one setting are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_rl.config import Config
from stream_rl.config_aliases import ALIASES
from stream_rl.errors import ConfigError

LEAST: dict[str, Any] = {"run": "runs/a", "hf_checkpoint": "m"}
CUSTOM = "max_turns: 3\nrollout_interaction_env_path: guess_number\nsearch_backend: local\n"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`load(tree, *overrides)`: the settings of a YAML file, beside which custom.yaml stands."""
    monkeypatch.chdir(tmp_path)
    Path("custom.yaml").write_text(CUSTOM)

    def load(tree: dict[str, Any], *overrides: str) -> Config:
        Path("run.yaml").write_text(yaml.safe_dump({**LEAST, **tree}))
        return Config.load("run.yaml", overrides)

    return load


def at(config: Config, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_every_alias_sets_what_it_stands_for(load: Any, alias: str) -> None:
    was = at(load({}), ALIASES[alias])
    value = {bool: False, int: 300, float: 0.5}.get(type(was), "given")
    assert at(load({alias: value}), ALIASES[alias]) == value
    assert at(load({}, f"{alias}={value}"), ALIASES[alias]) == value


def test_an_alias_stands_beside_a_section_of_ours(load: Any) -> None:
    config = load({"n_samples_per_prompt": 4, "rollout": {"max_turns": 2}})
    assert (config.rollout.group_size, config.rollout.max_turns) == (4, 2)


def test_a_response_limit_by_slimes_name_is_a_turns_limit_too_unless_that_is_given(load: Any) -> None:
    assert load({"rollout_max_response_len": 900}).rollout.max_turn_len == 900
    given = load({"rollout_max_response_len": 900, "rollout": {"max_turn_len": 100}})
    assert given.rollout.max_turn_len == 100


def test_the_custom_config_file_loads_as_it_is(load: Any) -> None:
    for config in (load({"custom_config_path": "custom.yaml"}), load({}, "custom_config_path=custom.yaml")):
        assert (config.rollout.max_turns, config.environment.path) == (3, "guess_number")
        assert config.environment.args == {"search_backend": "local"}


def test_what_is_resolved_has_our_names_alone(load: Any, tmp_path: Path) -> None:
    config = load({"custom_config_path": "custom.yaml", "lr": 1e-4})
    Path("resolved.yaml").write_text(config.dump())
    Path("custom.yaml").unlink()
    assert Config.load("resolved.yaml") == config


def test_an_override_replaces_what_the_file_says_by_another_name(load: Any) -> None:
    assert load({"rollout_batch_size": 4}, "rollout.groups_per_step=6").rollout.groups_per_step == 6
    assert load({"custom_config_path": "custom.yaml"}, "max_turns=7").rollout.max_turns == 7


@pytest.mark.parametrize(
    ("tree", "overrides", "message"),
    [
        ({"max_turns": 2, "rollout": {"max_turns": 2}}, [], "'rollout.max_turns' and 'max_turns' are two names"),
        ({"model": {"path": "n"}}, [], "'model.path' and 'hf_checkpoint' are two names of one setting"),
        ({}, ["lr=1", "trainer.learning_rate=1"], "'lr' and 'trainer.learning_rate' are two names"),
        (
            {"rollout_function_path": "a.b", "custom_generate_function_path": "a.c"},
            [],
            "'custom_generate_function_path' and 'rollout_function_path' are two names",
        ),
        (
            {"custom_config_path": "custom.yaml", "environment": {"path": "arithmetic"}},
            [],
            "'environment.path' and 'rollout_interaction_env_path' are two names",
        ),
        ({"custom_config_path": "absent.yaml"}, [], "cannot read settings absent.yaml"),
        ({"custom_config_path": 3}, [], "custom_config_path=3 must be the path of a YAML file"),
        ({"rollout": 5, "max_turns": 2}, [], "rollout is a section"),
        ({"rollout_batch_sise": 5}, [], "did you mean 'rollout_batch_size'"),
        ({"max_turns": 0}, [], "rollout.max_turns=0: "),
    ],
)
def test_what_cannot_be_meant_is_refused(load: Any, tree: dict[str, Any], overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tree, *overrides)
