"""Environments by name and by path; what is wrong is one line that names the setting."""

from __future__ import annotations

import pytest

from stream_rl.envs.loading import SHIPPED, load_environment
from stream_rl.errors import EnvironmentLoadError


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_loads_by_its_short_name(name):
    module = load_environment(name)

    assert module.name == name
    assert callable(module.prompt)


def test_a_module_path_loads_and_its_last_part_is_the_name(tmp_path, monkeypatch):
    (tmp_path / "my_envs").mkdir()
    (tmp_path / "my_envs" / "maze.py").write_text("def build_env(sample=None, args=None, **_):\n    return 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = load_environment("my_envs.maze")

    assert (module.name, module.prompt, module.build_env()) == ("maze", None, 7)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("gues_number", "did you mean 'guess_number'"),
        ("nowhere.at.all", f"one that ships: {', '.join(SHIPPED)}"),
        ("", "one that ships"),
        ("json", r"has no build_env\(sample=None, args=None, \*\*_\)"),
    ],
)
def test_what_is_missing_is_named_with_the_nearest(path, hint):
    with pytest.raises(EnvironmentLoadError, match=rf"environment\.path={path!r}.*{hint}"):
        load_environment(path)


def test_a_module_that_raises_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "broken_env.py").write_text("raise RuntimeError('first line\\nsecond line')\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(EnvironmentLoadError, match=r"cannot be imported: RuntimeError: first line$"):
        load_environment("broken_env")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import sys\nsys.exit(3)\n", "cannot be imported: SystemExit: 3"),
        ("def build_env(:\n", "cannot be imported: SyntaxError"),
        ("def build_env(**_): ...\nprompt = 'guess'\n", "its prompt is no function"),
    ],
)
def test_a_module_that_cannot_serve_is_named(tmp_path, monkeypatch, text, reason):
    name = f"spoiled_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(EnvironmentLoadError, match=rf"environment\.path='{name}'.*{reason}"):
        load_environment(name)
