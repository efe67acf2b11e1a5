"""Which sample the code that runs belongs to: what logs and traces say of it, wherever in its episode they are written.

Every episode is a task of its own, and tasks that it starts inherit the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

__all__ = ["Playing", "current", "playing"]


@dataclass(slots=True)
class Playing:
    """A sample in a producer's hands.

    lease      the number of its lease
    next_turn  says which interaction is under way
    tracer     takes its spans (an OpenTelemetry tracer); None: it is not traced
    """

    run: str
    group: int
    sample: str
    lease: int
    next_turn: Callable[[], int]
    tracer: Any = None

    @property
    def traced(self) -> bool:
        """Whether its spans are kept."""
        return self.tracer is not None

    @property
    def turn(self) -> int:
        """The interaction under way."""
        return self.next_turn()


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
