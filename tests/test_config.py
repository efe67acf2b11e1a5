"""Settings: what is refused, how it is said, and how the three knobs complete each other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_rl.config import Config
from stream_rl.errors import ConfigError

LEAST: dict[str, Any] = {"run": "runs/a", "model": {"path": "m"}, "environment": {"path": "guess_number"}}


def written(folder: Path, tree: Any = None) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(LEAST if tree is None else tree))
    return path


def parse(**sections: Any) -> Config:
    return Config.parse({**LEAST, **sections})


def refusal(tree: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        Config.parse(tree)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({**LEAST, "trainr": {}}, "unknown setting 'trainr': did you mean 'trainer'?"),
        (
            {**LEAST, "trainer": {"learning_rat": 1}},
            "unknown setting 'trainer.learning_rat': did you mean 'learning_rate'?",
        ),
        ({**LEAST, "rollout": {"max_turn": 3}}, "unknown setting 'rollout.max_turn': did you mean 'max_turns'?"),
        ({"model": {"path": "m"}, "environment": {"path": "e"}}, "setting 'run' is missing"),
        ({**LEAST, "model": {}}, "setting 'model.path' is missing"),
        ({**LEAST, "trainer": {"steps": 0}}, "setting trainer.steps=0: "),
        ({**LEAST, "trainer": {"steps": "many"}}, "setting trainer.steps='many': "),
        ({**LEAST, "metrics": {"port": 70000}}, "setting metrics.port=70000: "),
        ({**LEAST, "buffer": {"fsync": "never"}}, "setting buffer.fsync='never': "),
    ],
)
def test_a_wrong_setting_is_named(tree: dict[str, Any], message: str) -> None:
    assert refusal(tree).startswith(message)


def test_an_unknown_setting_near_to_none_lists_those_there_are() -> None:
    assert "known here: path, dtype" in refusal({**LEAST, "model": {"path": "m", "zzzz": 1}})


def test_settings_that_contradict_each_other_are_both_named() -> None:
    assert "mini_batches=9" in (
        message := refusal({**LEAST, "trainer": {"mini_batches": 9}, "rollout": {"groups_per_step": 8}})
    )
    assert "groups_per_step=8" in message
    message = refusal({**LEAST, "rollout": {"max_turn_len": 9, "max_response_len": 8}})
    assert "max_turn_len=9" in message
    assert "max_response_len=8" in message


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ({}, (3, 8, 12)),
        ({"max_staleness": 5}, (3, 5, 5)),
        ({"max_staleness": 2}, (2, 2, 2)),
        ({"max_staleness": 0}, (0, 0, 0)),
        ({"max_lag": 20}, (3, 8, 20)),
        ({"max_staleness": 4, "max_lag": 6}, (3, 4, 6)),
        ({"run_ahead": 1}, (1, 8, 12)),
        ({"run_ahead": 1, "max_staleness": 2}, (1, 2, 2)),
        ({"run_ahead": 6, "max_staleness": 4, "max_lag": 6}, (6, 4, 6)),
    ],
)
def test_the_knobs_complete_each_other(given: dict[str, int], resolved: tuple[int, int, int]) -> None:
    knobs = parse(scheduling=given).scheduling
    assert (knobs.run_ahead, knobs.max_staleness, knobs.max_lag) == resolved


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_staleness": 9, "max_lag": 8}, "max_staleness=9 is more than max_lag=8"),
        ({"run_ahead": 5, "max_staleness": 2}, "run_ahead=5 is more than max_lag=2"),
        ({"max_lag": 3}, "max_staleness=8 is more than max_lag=3"),
    ],
)
def test_knobs_without_a_bound_are_refused(given: dict[str, int], message: str) -> None:
    assert message in refusal({**LEAST, "scheduling": given})


def test_a_knob_that_is_no_number_is_refused_by_name() -> None:
    assert refusal({**LEAST, "scheduling": {"max_staleness": "high"}}).startswith(
        "setting scheduling.max_staleness='high'"
    )


def test_dumped_settings_load_as_they_were(tmp_path: Path) -> None:
    config = parse(scheduling={"max_staleness": 2}, trainer={"betas": [0.8, 0.9]}, engine={"urls": ["http://a:1"]})
    path = tmp_path / "config.yaml"
    path.write_text(config.dump())
    assert Config.load(path) == config


def test_overrides_are_yaml_and_replace_the_file(tmp_path: Path) -> None:
    overrides = [
        "trainer.learning_rate=1e-3",
        "seed=4",
        "environment.args.words=[a, b]",
        "data.path=",
        "trainer.steps=7",
    ]
    config = Config.load(written(tmp_path, {**LEAST, "trainer": {"steps": 5}}), overrides)
    assert config.trainer.learning_rate == 1e-3
    assert config.trainer.steps == 7
    assert config.seed == 4
    assert config.environment.args == {"words": ["a", "b"]}
    assert config.data.path is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "override 'seed' must be key.path=value"),
        ("=4", "override '=4' must be key.path=value"),
        ("run.name=b", "override of 'run.name': run is a single value, not a section"),
        ("seed=[", "override 'seed=[': the value is not YAML"),
        ("trainer.step=3", "unknown setting 'trainer.step': did you mean 'steps'?"),
        ("model={dtype: bfloat16}", "override of 'model' would replace the whole section: pass model.NAME=VALUE"),
    ],
)
def test_a_wrong_override_is_quoted(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load(written(tmp_path), [override])
    assert str(caught.value) == message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read settings .*absent\.yaml: No such file"):
        Config.load(tmp_path / "absent.yaml")


def test_what_is_not_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("run: a\nmodel: [unclosed\n")
    with pytest.raises(ConfigError, match=r"bad.yaml line \d is not YAML"):
        Config.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"run: a\nseed: 1\nseed: 2\n", "line 3 is not YAML: 'seed' stands twice"),
        (b"run: a\nrollout: {group_size: 2}\nrollout: {max_turns: 3}\n", "line 3 is not YAML: 'rollout' stands twice"),
        (b"run: \xff\xfe", "is not YAML: 'utf-8' codec"),
        (b"run: 2024-99-99\n", "is not YAML: month must be in 1..12"),
    ],
)
def test_what_yaml_would_lose_or_cannot_read_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Config.load(tmp_path / "bad.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("section", "name", "value", "message"),
    [
        ("trainer", "steps", True, "trainer.steps: must be a number, not true"),
        ("trainer", "steps", 10**20, f"trainer.steps: {10**20} is beyond 2147483647"),
        ("trainer", "importance_cap", False, "trainer.importance_cap: must be a number, not false"),
        ("trainer", "learning_rate", math.inf, "setting trainer.learning_rate=inf: "),
        ("trainer", "max_grad_norm", math.nan, "setting trainer.max_grad_norm=nan: "),
        ("trainer", "betas", [0.9, 1.0], "setting trainer.betas.1=1.0: "),
        ("trainer", "betas", [0.9], "setting trainer.betas.1=[0.9]: "),
        ("trainer", "clip_low", 1.0, "setting trainer.clip_low=1.0: "),
        ("rollout", "group_size", 1, "setting rollout.group_size=1: "),
    ],
)
def test_numbers_that_no_run_can_use_are_refused(section: str, name: str, value: object, message: str) -> None:
    assert refusal({**LEAST, section: {name: value}}).startswith(message)


def test_a_negative_seed_is_refused() -> None:
    assert refusal({**LEAST, "seed": -1}).startswith("setting seed=-1: ")


@pytest.mark.parametrize("section", [None, 3])
def test_a_section_that_is_a_value_shows_how_to_write_one(section: object) -> None:
    message = "trainer is a section: write its settings below it, or pass trainer.NAME=VALUE"
    assert refusal({**LEAST, "trainer": section}) == message


@pytest.mark.parametrize("run", ["", "/", "..", "a/..", "~/demo", "a{b}", "a\nb", "a\0b"])
def test_a_folder_that_gives_no_name_is_refused(run: str) -> None:
    assert refusal({**LEAST, "run": run}).startswith("run: ")


@pytest.mark.parametrize("run", ["demo", "runs/übung 漢", "/a/b-1.2"])
def test_a_name_may_be_in_any_script(run: str) -> None:
    assert parse(run=run).name == Path(run).name


def test_a_file_without_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must hold settings"):
        Config.load(written(tmp_path, ["a", "b"]))


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse().seed = 3  # type: ignore[misc]


def test_the_folder_gives_the_run_its_name() -> None:
    config = parse(run="runs/deep/demo-1")
    assert config.name == "demo-1"
    assert config.folder == Path("runs/deep/demo-1")
