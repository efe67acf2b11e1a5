"""A loop of one's own, and a reward function that scores every kind of loop."""

from __future__ import annotations

from typing import Any

from stream_rl.agents import AgentLoop
from stream_rl.slime.types import Sample


class SecondThought(AgentLoop):
    """Lets the model answer twice; the second answer counts."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> float:
        await self.context.generate()
        answer = await self.context.generate({"role": "user", "content": "guess"})
        return float(answer.text == str(kwargs["label"]))


async def reward(args: Any, sample: Sample) -> float:
    """What the turns gave; a single answer is compared with the label."""
    if sample.metadata["agent_name"] == "single_turn_agent":
        return float(sample.response == str(sample.label))
    return sum(turn.reward for turn in sample.turns)
