"""Agent loops: who decides what happens between two answers of the model. The loops that ship, and users' own."""

from stream_rl.agents.base import AgentLoop
from stream_rl.agents.context import AgentContext, Answer, current_context

__all__ = ["AgentContext", "AgentLoop", "Answer", "current_context"]
