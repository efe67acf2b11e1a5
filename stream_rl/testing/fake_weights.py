"""The part of a fake engine that receives weights: which version it has, its process groups, the update's bracket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Control", "FakeWeights"]

Control = Callable[[dict[str, Any]], str | None]
"""An endpoint: the body -> why it is refused, or None."""


class FakeWeights:
    """Weights that are nothing but a version. `controls` has the endpoint for each path."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._groups: set[str] = set()
        self._bracket = False
        self.controls: dict[str, Control] = {
            "update_weights_from_disk": self._load,
            "init_weights_update_group": self._join,
            "destroy_weights_update_group": self._leave,
            "begin_weight_update": self._begin,
            "update_weights_from_distributed": self._receive,
            "end_weight_update": self._end,
        }

    def _load(self, body: dict[str, Any]) -> None:
        self.version = body["weight_version"]

    def _join(self, body: dict[str, Any]) -> None:
        self._groups.add(body["group_name"])

    def _leave(self, body: dict[str, Any]) -> str | None:
        if body["group_name"] not in self._groups:
            return "the group to be destroyed does not exist"
        self._groups.remove(body["group_name"])
        return None

    def _begin(self, _body: dict[str, Any]) -> str | None:
        if self._bracket:
            return "a weight-update session is already open"
        self._bracket = True
        return None

    def _receive(self, body: dict[str, Any]) -> str | None:
        if not self._bracket:
            return "no weight-update session is open"
        if body["group_name"] not in self._groups:
            return f"no group {body['group_name']}"
        self.version = body["weight_version"] or self.version
        return None

    def _end(self, _body: dict[str, Any]) -> str | None:
        if not self._bracket:
            return "no weight-update session is open"
        self._bracket = False
        return None
