"""Asynchronous reinforcement learning for multi-turn LLM and VLM agents.

prompt -> group (admitted) -> sample (leased) -> turns (committed) -> group (complete) -> step (ledger) -> weights
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
