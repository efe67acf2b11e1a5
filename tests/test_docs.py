"""The docs' examples run, and their links lead somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from stream_rl.envs.base import EnvSample, ResumeClass, resume_class
from stream_rl.envs.loading import load_environment
from stream_rl.errors import ActionError
from stream_rl.metrics.summary import RunFacts, summarise

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "examples" / "README.md"]


def code_of(page: str) -> str:
    """The first Python example of a page."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def capitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The example environment as a module that Python can import."""
    (tmp_path / "capitals_of_the_docs.py").write_text(code_of("environments.md"))
    monkeypatch.syspath_prepend(tmp_path)
    return "capitals_of_the_docs"


def test_the_example_environment_plays_an_episode(capitals: str) -> None:
    loaded = load_environment(capitals)
    assert loaded.prompt is not None
    row = loaded.prompt(0, 1, None)
    assert row == loaded.prompt(0, 1, None)
    env = loaded.build_env(sample=EnvSample(row["prompt"], row["label"]), args=None)
    assert env.reset() == ({}, {})
    with pytest.raises(ActionError, match="One word"):
        env.step("I think Tokyo")
    assert env.step("Kyoto") == ({"obs_str": "No. It begins with T."}, False, {"reward": 0.0})
    assert env.step(" Tokyo\n") == ({}, True, {"reward": 1.0})
    assert resume_class(env) is ResumeClass.REPLAY


def test_the_example_environment_is_short() -> None:
    assert len([line for line in code_of("environments.md").splitlines() if line.strip()]) <= 30


def test_every_figure_of_the_summary_is_defined(tmp_path: Path) -> None:
    defined = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "summary.md").read_text(), re.MULTILINE)
    assert sorted(defined) == sorted(summarise(tmp_path, RunFacts()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def collected(file: Path) -> set[str]:
    """What pytest finds in a file, by name, in its classes too: "test_a", "TestB::test_a", and names of test cases."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.ClassDef():
                found |= {
                    f"{node.name}::{part.name}"
                    for part in node.body
                    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
                }
            case ast.Assign():
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in found if name.rpartition("::")[2].lower().startswith("test")}


def test_every_fault_has_a_test_that_exists() -> None:
    rows = re.findall(
        r"^\| (?!what goes|---)(.+) \| (.+) \| (.+) \|$", (ROOT / "docs" / "faults.md").read_text(), re.MULTILINE
    )
    assert rows
    for fault, _, tests in rows:
        names = re.findall(r"`([\w/]+\.py)::([\w:]+)`", tests)
        assert names, fault
        for file, name in names:
            assert name in collected(ROOT / "tests" / file), f"{file}::{name}"
