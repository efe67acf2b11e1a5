"""What the command lines of all benchmarks share: --quick, --seed, --json, and settings that --quick makes smaller."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

__all__ = ["parser", "settled", "write"]


def parser(page: str | None, *, quick: str, seed: str | None = None, **more: Any) -> argparse.ArgumentParser:
    """Begins a command line; `page` is the benchmark's docstring, the others say what an argument does."""
    begun = argparse.ArgumentParser(description=page, formatter_class=argparse.RawDescriptionHelpFormatter, **more)
    begun.add_argument("--quick", action="store_true", help=quick)
    begun.add_argument("--seed", type=int, default=0, help=seed)
    begun.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    return begun


def settled(args: argparse.Namespace, *, usual: Mapping[str, Any], quick: Mapping[str, Any]) -> argparse.Namespace:
    """The arguments with the usual values, or those of --quick, where none was given."""
    for name, value in (quick if args.quick else usual).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def write(file: Path | None, figures: object) -> None:
    """Writes figures as JSON where --json asks for it."""
    if file is not None:
        file.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
