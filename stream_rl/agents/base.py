"""What an agent loop is: how one sample gets from its prompt to its end, written as a plain coroutine.

A loop talks to the model through its `AgentContext` alone. That is what makes it durable: every `generate` first
commits the turn before it, under the sample's lease, and only then asks an engine, within the budgets of the settings.
A sample that moves to another process finds its loop again by `resume_class`, as an environment does:

    replay    `deterministic` is True (the default): `run` is called again; `generate` answers with the recorded turns
              until it has caught up, and what the loop then observes is compared with what was recorded
    snapshot  the loop has `state_dict()` and `load_state_dict(state)`: `run` is called on a loop with that state, and
              begins at its next `generate`
    restart   neither: the episode begins again
"""

from __future__ import annotations

from typing import Any

from stream_rl.agents.context import AgentContext

__all__ = ["AgentLoop"]


class AgentLoop:
    """Base of a loop for one sample; any class that takes a context and has such a `run` will do."""

    deterministic: bool = True
    """Equal answers of the model, and equal results of `act` and `once`, lead to equal observations."""

    def __init__(self, context: AgentContext) -> None:
        self.context = context

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> float | None:
        """Plays the sample; the episode ends with `model_done` when it returns.

        It is cancelled where a budget ends the episode, so what it holds is freed in a `finally`.

        Args:
            sampling_params: what generations are sampled with, for information: `temperature`, `max_new_tokens`.
            kwargs: the row: `prompt`, `raw_prompt` (its chat messages), `label`, and every other field by its name.

        Returns:
            A reward to add to the last turn's, or None.

        Raises:
            EnvInfraError: the world failed; the loop is brought back to its last answer, which it gets again.
            EnvFatalError: the episode cannot go on; the sample fails, is never scored, and another takes its place.
        """
        raise NotImplementedError
