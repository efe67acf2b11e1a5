"""`single_turn_agent`: one answer, which a reward function scores."""

from __future__ import annotations

from typing import Any

from stream_rl.agents.base import AgentLoop

__all__ = ["SingleTurnAgent"]


class SingleTurnAgent(AgentLoop):
    """Asks the prompt once."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> None:
        """See AgentLoop."""
        await self.context.generate()
