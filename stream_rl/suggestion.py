"""What a message about a wrong name suggests."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str], otherwise: str, *, likeness: float = 0.4) -> str:
    """The end of a message about a name that does not exist: the nearest known one, or `otherwise` if none is near.

    Args:
        likeness: how near it must be, from 0 (anything) to 1 (equal), as difflib counts.
    """
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=likeness)
    return f"did you mean {near[0]!r}?" if near else otherwise
