"""slime's way to the engine, `post` and `GenerateState`, for rollout functions that were written against them.

A request's `input_ids` are the whole conversation, so `post` is a `generate_from` of the loop that it is called in:
what follows the conversation so far is the observation. No URL is called: the turn loop generates, commits and resumes.
"""

from __future__ import annotations

from typing import Any

from stream_rl.agents.context import current_context
from stream_rl.agents.handover import Answer
from stream_rl.errors import EnvFatalError

__all__ = ["GenerateState", "post"]


class GenerateState:
    """What slime shares between generations, as far as a rollout function uses it."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.tokenizer = current_context().tokenizer
        self.processor = None


async def post(url: str, payload: dict[str, Any], max_retries: int = 60, headers: Any = None) -> dict[str, Any]:
    """What SGLang's /generate answers to a request of token ids.

    Raises:
        EnvFatalError: the request is text, which would be tokenised anew, or has images.
    """
    if payload.get("input_ids") is None:
        raise EnvFatalError("post needs input_ids: text that is tokenised anew is not what the model wrote")
    if payload.get("image_data"):
        raise EnvFatalError("post cannot send image_data")
    return _sglang_form(await current_context().generate_from(payload["input_ids"]))


def _sglang_form(answer: Answer) -> dict[str, Any]:
    log_probs, tokens = answer.log_probs.tolist(), answer.tokens.tolist()
    return {
        "text": answer.text,
        "output_ids": tokens,
        "meta_info": {
            "finish_reason": {"type": answer.finish_reason},
            "output_token_logprobs": [[value, token, None] for value, token in zip(log_probs, tokens, strict=True)],
            "completion_tokens": len(tokens),
            "weight_version": answer.weight_version,
        },
    }
