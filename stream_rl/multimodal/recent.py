"""Values by key, bounded in bytes: what was used longest ago is given up first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Recent"]

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """What was used last, as much as `limit` bytes hold; a value of more than that is not kept at all.

    Args:
        limit: in bytes.
        size: of a value, in bytes.
    """

    def __init__(self, limit: int, size: Callable[[Value], int]) -> None:
        self._limit = limit
        self._size_of = size
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._size = 0

    def get(self, key: Key) -> Value | None:
        """The value, which is used by this; None for one that is not there."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def keep(self, key: Key, value: Value) -> Value:
        """Keeps a value, and gives it back; where the key has one already, that one stays, and is given back."""
        if (known := self.get(key)) is not None:
            return known
        self._values[key] = value
        self._size += self._size_of(value)
        while self._size > self._limit:
            _, oldest = self._values.popitem(last=False)
            self._size -= self._size_of(oldest)
        return value
