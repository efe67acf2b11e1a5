"""Entries of `environment.args` that adapters of other packages share, checked before those packages see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stream_rl.errors import EnvironmentLoadError

__all__ = ["options_of", "reason", "words_of"]


def options_of(name: str, given: Any) -> dict[str, Any]:
    """`environment.args.NAME` as a mapping of options by name, empty where it is not given.

    Raises EnvironmentLoadError for anything else.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise EnvironmentLoadError(f"environment.args.{name}={given!r:.60} must be a mapping of options by name")
    return dict(given)


def words_of(name: str, given: Any) -> tuple[str, ...]:
    """`environment.args.NAME` as different words in lower case, none where it is not given.

    Raises EnvironmentLoadError for anything else.
    """
    if given is None:
        return ()
    if not isinstance(given, list | tuple) or not all(isinstance(word, str) and word.strip() for word in given):
        raise EnvironmentLoadError(
            f"environment.args.{name}={given!r:.60} must be a list of words; quote what YAML takes for something else, "
            "as on and no"
        )
    words = tuple(word.strip().lower() for word in given)
    if len(set(words)) < len(words):
        raise EnvironmentLoadError(f"environment.args.{name} has a word twice: {', '.join(words)}")
    return words


def reason(error: BaseException) -> str:
    """What another package says is wrong, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if any(map(str.isalnum, line))]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
