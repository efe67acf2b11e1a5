"""slime's way to the engine, `post` and `GenerateState`, for rollout functions that were written against them.

A request's `input_ids` are the whole conversation, so `post` is a `generate_from` of the loop that it is called in:
what follows the conversation so far is the observation. No URL is called: the turn loop generates, commits and resumes.
"""

from __future__ import annotations

from typing import Any

from stream_rl.agents.context import current_context
from stream_rl.agents.handover import Answer
from stream_rl.errors import AgentLoadError

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
        AgentLoadError: the request is text, which would be tokenised anew, has images, or is to be sampled otherwise.
    """
    if payload.get("input_ids") is None:
        raise AgentLoadError(
            "a rollout function's post needs input_ids: text that is tokenised anew is not what the model wrote"
        )
    if payload.get("image_data"):
        raise AgentLoadError(
            "a rollout function's post cannot send image_data: show images by context.observe, in a loop that calls "
            "context.generate"
        )
    context = current_context()
    for name, value in context.sampling_params.items():
        asked = (payload.get("sampling_params") or {}).get(name, value)
        if name != "max_new_tokens" and asked != value:  # budgets are the turn loop's in any case
            raise AgentLoadError(
                f"a rollout function's post asks for {name}={asked}, and the trainer counts on {value}: leave it"
            )
    return _sglang_form(await context.generate_from(payload["input_ids"]))


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
