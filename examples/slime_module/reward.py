"""A reward function as one writes it for slime (`--custom-rm-path`, `--reward-key score`)."""

from __future__ import annotations

from typing import Any

from slime.utils.types import Sample


async def reward(args: Any, sample: Sample) -> dict[str, float]:
    """Whether the last number that was said is the label, and how many tokens the model wrote for it."""
    said = [word for word in sample.response.split() if word.isdigit()]
    return {
        "score": float(bool(said) and said[-1] == str(sample.label)),
        "tokens": float(sample.effective_response_length),
    }
