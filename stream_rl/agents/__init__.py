"""Agent loops: who decides what happens between two answers of the model. The loops that ship, and users' own."""

from stream_rl.agents.base import AgentLoop
from stream_rl.agents.context import AgentContext, current_context
from stream_rl.agents.handover import Answer

__all__ = ["AgentContext", "AgentLoop", "Answer", "current_context"]
