"""What an episode may still spend: always a cap minus what was spent, so that a resume never starts a budget again."""

from __future__ import annotations

from typing import NamedTuple

from stream_rl.config import RolloutConfig
from stream_rl.sample import Sample, StopReason

__all__ = ["Limit", "overflow", "tightest"]


class Limit(NamedTuple):
    """Tokens that the next generation may have, and the reason to give when it is cut there."""

    tokens: int
    reason: StopReason


def tightest(sample: Sample, limits: RolloutConfig) -> Limit:
    """The tightest of the three token budgets. The response's budget does not contain the prompt."""
    spent, open_length = sample.response_length, sum(len(turn.generated) for turn in sample.open_turn)
    budgets = (
        Limit(limits.max_turn_len - open_length, StopReason.MAX_TURN_LEN),
        Limit(limits.max_response_len - spent, StopReason.MAX_RESPONSE_LEN),
        Limit(limits.max_context_len - len(sample.prompt_tokens) - spent, StopReason.MAX_CONTEXT_LEN),
    )
    return min(budgets, key=lambda limit: limit.tokens)


def overflow(sample: Sample, added: int, limits: RolloutConfig) -> StopReason | None:
    """The budget that would leave no token to generate after `added` more, or None."""
    spent = sample.response_length + added
    if spent >= limits.max_response_len:
        return StopReason.MAX_RESPONSE_LEN
    if len(sample.prompt_tokens) + spent >= limits.max_context_len:
        return StopReason.MAX_CONTEXT_LEN
    return None
