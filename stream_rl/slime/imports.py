"""Lets users' modules import from `slime` where it is not installed: setting `environment.slime_imports`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types

__all__ = ["MODULES", "allow_slime_imports"]

MODULES = {
    "slime.utils.types": "stream_rl.slime.types",
    "slime.utils.http_utils": "stream_rl.slime.engine",
    "slime.utils.processing_utils": "stream_rl.slime.images",
    "slime.rollout.sglang_rollout": "stream_rl.slime.engine",
    "slime.rollout.rm_hub": "stream_rl.slime.math_grading",
    "slime.rollout.rm_hub.math_utils": "stream_rl.slime.math_grading",
    "examples.geo3k_vlm_multi_turn.base_env": "stream_rl.slime.base_env",
}


def allow_slime_imports() -> None:
    """Makes every name of MODULES that Python does not find an import of ours. Modules that are there stay."""
    for name, ours in MODULES.items():
        if _is_there(name):
            continue
        module = importlib.import_module(ours)
        for parent in _parents(name):
            if parent not in sys.modules and not _is_there(parent):
                stand_in = types.ModuleType(parent, f"Stands in for slime's package of this name: {__name__}")
                stand_in.__path__ = []
                _put(parent, stand_in)
        _put(name, module)


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _put(name: str, module: types.ModuleType) -> None:
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(importlib.import_module(parent), last, module)


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a parent is missing, or stands in for one
        return False
