"""Lists of numbers in the options of commands."""

from __future__ import annotations

from stream_rl.config_sections import LARGEST
from stream_rl.errors import ConfigError

__all__ = ["whole_numbers"]


def whole_numbers(option: str, text: str, least: int) -> list[int]:
    """Whole numbers with commas between them. Raises ConfigError for others, and for what no setting may be."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option} {text}: must be whole numbers with commas between them") from error
    if min(numbers) < least:
        raise ConfigError(f"{option} {text}: {least} is the smallest")
    if max(numbers) > LARGEST:
        raise ConfigError(f"{option} {text}: {LARGEST} is the largest")
    return numbers
