"""Finds an environment by its short name or module path. Whatever is wrong with it is one `EnvironmentLoadError`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from stream_rl.envs.base import format_observation
from stream_rl.errors import EnvironmentLoadError
from stream_rl.suggestion import did_you_mean

__all__ = [
    "SHIPPED",
    "SLIME_HINT",
    "EnvironmentModule",
    "PromptGenerator",
    "is_module",
    "load_environment",
    "wants_slime",
]

SHIPPED = (
    "arithmetic", "geo_multi_turn", "grid_walk_images", "guess_number", "gymnasium", "judge", "minigrid",
    "quadrant_each_turn", "reasoning_gym", "tau2", "textarena",
)  # fmt: skip

SLIME_HINT = "environment.slime_imports=true offers what docs/slime.md lists"

PromptGenerator = Callable[[int, int, Any], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class EnvironmentModule:
    """A loaded environment.

    name       short name: the label of its metrics
    build_env  `build_env(sample=EnvSample, args=namespace)` makes one environment for one episode
    prompt     `prompt(seed, index, args) -> {"prompt": ..., "label": ...}`, or None where only a dataset has prompts
    form       `format_observation(observation) -> message` of the module, for environments without one of their own
    takes      what `build_env` takes by name besides `sample` and `args`: then only these may be in `environment.args`
    """

    name: str
    build_env: Callable[..., Any]
    prompt: PromptGenerator | None = None
    form: Callable[[Mapping[str, Any]], Mapping[str, Any]] = format_observation
    takes: frozenset[str] = frozenset()

    def named(self, args: Any) -> dict[str, Any]:
        """What of the namespace `args` is handed to `build_env` by name as well."""
        return {name: value for name, value in vars(args).items() if name in self.takes}


def load_environment(path: str | None) -> EnvironmentModule:
    """Imports the environment that `environment.path` names, a module or a .py file; for None, one that is never built.

    Raises:
        EnvironmentLoadError: no such module, its import fails, it has no `build_env`, or its `prompt` is no function.
    """
    if path is None:
        return EnvironmentModule("none", _no_environment)
    try:
        module = _import(path)
    except EnvironmentLoadError:
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything when it is imported
        raise EnvironmentLoadError(f"environment.path={path!r} cannot be imported: {_first_line(error)}") from error
    build_env = getattr(module, "build_env", None)
    if not callable(build_env):
        raise EnvironmentLoadError(f"environment.path={path!r} has no build_env(sample=None, args=None, **_): add it")
    prompt = getattr(module, "prompt", None)
    if prompt is not None and not callable(prompt):
        raise EnvironmentLoadError(f"environment.path={path!r}: its prompt is no function prompt(seed, index, args)")
    form = getattr(module, "format_observation", format_observation)
    name = path.removesuffix(".py").replace("/", ".").rpartition(".")[2]
    return EnvironmentModule(name, build_env, prompt, form, _takes(build_env))


def _import(path: str) -> ModuleType:
    """Raises EnvironmentLoadError when there is no such module, and whatever its import raises."""
    if path.endswith(".py"):
        return _import_file(Path(path))
    if path not in SHIPPED and not is_module(path):
        raise EnvironmentLoadError(f"environment.path={path!r} is no module: {_hint(path)}")
    return importlib.import_module(f"stream_rl.envs.{path}" if path in SHIPPED else path)


def _import_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise EnvironmentLoadError(f"environment.path={str(file)!r} is no file")
    name = f"environment_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _no_environment(**_: Any) -> Any:
    raise EnvironmentLoadError("this agent loop acts in an environment: set environment.path")


def _takes(build_env: Callable[..., Any]) -> frozenset[str]:
    try:
        parameters = inspect.signature(build_env).parameters.values()
    except (TypeError, ValueError):  # a callable of C has no signature
        return frozenset()
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return frozenset(p.name for p in parameters if p.kind in by_name) - {"sample", "args"}


def is_module(path: str) -> bool:
    """Whether Python finds a module, or has imported one, by this name."""
    try:
        return path in sys.modules or importlib.util.find_spec(path) is not None
    except (ImportError, ValueError):  # a parent package is missing, or the name is malformed
        return False


def _hint(path: str) -> str:
    ships = f"give a module that Python can import, or one that ships: {', '.join(SHIPPED)}"
    return did_you_mean(path, SHIPPED, ships, likeness=0.5)


def _first_line(error: BaseException) -> str:
    line = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return f"{line}; {SLIME_HINT}" if wants_slime(error) else line


def wants_slime(error: BaseException) -> bool:
    """Whether an import failed for want of slime."""
    return isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "slime"
