"""What a row hands to its environment must come back from the sample's record as it went in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stream_rl.envs.plain import odd_part

__all__ = ["not_to_be_kept"]


def not_to_be_kept(fields: Mapping[str, Any]) -> str | None:
    """The first of a row's fields that no record can hold, in words for a message; None where each can."""
    for name, value in fields.items():
        if (odd := odd_part(value)) is not None:
            return (
                f"field {name!r} holds {odd}, which JSON cannot: write it as text or a number, or leave it out; "
                "a field of images goes into data.image_field"
            )
    return None
