"""Which sample the code that runs belongs to: what logs and traces say of it, wherever in its episode they are written.

Every episode is a task of its own, and tasks that it starts inherit the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["Playing", "current", "playing"]


@dataclass(slots=True)
class Playing:
    """A sample in a producer's hands: `lease` is the number of its lease, `turn` the interaction under way."""

    run: str
    group: int
    sample: str
    lease: int
    turn: int = 0
    traced: bool = False


_CURRENT: ContextVar[Playing | None] = ContextVar("playing", default=None)


def current() -> Playing | None:
    """The sample that this task plays, None outside of episodes."""
    return _CURRENT.get()


@contextmanager
def playing(sample: Playing) -> Iterator[Playing]:
    """Makes `sample` the one that this task plays."""
    before = _CURRENT.set(sample)
    try:
        yield sample
    finally:
        _CURRENT.reset(before)
