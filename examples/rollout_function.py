"""A rollout function: guess the number, and be told how far it is and in which direction."""

from __future__ import annotations

from typing import Any

from stream_rl.agents import current_context
from stream_rl.slime.types import Sample


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Plays one sample. Whatever happens to this process, it goes on from the last answer of the model."""
    context = current_context()
    sample.reward = 0.0
    for _ in range(args.max_turns):
        answer = await context.generate()
        guess = int(answer.text) if answer.text.isdigit() else None
        if guess == sample.label:
            sample.reward = 1.0
            break
        if guess is None:
            context.parse_failure()
            context.observe({"role": "user", "content": "invalid"})
        else:
            direction = "higher" if guess < sample.label else "lower"
            context.observe({"role": "user", "content": f"{abs(guess - sample.label)} {direction}"})
    return sample
