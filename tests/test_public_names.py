"""What modules offer each other is written down: `__all__` has what others take, and has nothing that is not there."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "stream_rl"


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


TREES = {name_of(file): ast.parse(file.read_text()) for file in sorted(PACKAGE.rglob("*.py"))}


def offered(tree: ast.Module) -> list[str] | None:
    """The names of `__all__`, None where there is none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


def defined(tree: ast.Module) -> set[str]:
    """Names that a module has at its top level."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def taken() -> dict[str, set[str]]:
    """What the package's modules import by name from each other."""
    names: defaultdict[str, set[str]] = defaultdict(set)
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in TREES:
                names[node.module] |= {a.name for a in node.names if f"{node.module}.{a.name}" not in TREES}
    return names


TAKEN = taken()


MODULES = [name for name, tree in TREES.items() if not name.endswith("__main__") and len(tree.body) > 1]
"""Not what is run, nor a package that is only a docstring."""


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_it_offers(module: str) -> None:
    names = offered(TREES[module])
    assert names is not None, "it has no __all__"
    assert len(names) == len(set(names))
    assert set(names) <= defined(TREES[module])
    assert TAKEN[module] <= set(names), "others take what it does not offer"
