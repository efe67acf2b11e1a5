"""A rollout function of slime's form, `async generate(args, sample, sampling_params)`, as an agent loop.

It reaches the model by `current_context()`, or by slime's own `post`. Deterministic as a loop must be: on a resume it
runs again, and gets the recorded answers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from stream_rl.agents.base import AgentLoop
from stream_rl.agents.context import AgentContext
from stream_rl.errors import AgentLoadError, EnvFatalError
from stream_rl.slime.types import Sample

__all__ = ["FunctionAgent", "function_loop"]

Function = Callable[[Any, Sample, dict[str, Any]], Awaitable[Any]]

SAMPLE_HAS = "the sample that the rollout function returned has"


class FunctionAgent(AgentLoop):
    """Plays a sample by a function."""

    def __init__(self, context: AgentContext, function: Function) -> None:
        super().__init__(context)
        self._function = function

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> float | None:
        """See AgentLoop. The reward is `sample.reward` of what the function returns."""
        context = self.context
        sample = Sample(
            prompt=context.prompt_text,
            label=context.sample.label,
            metadata=dict(context.sample.metadata),
        )
        returned = await self._function(context.args, sample, sampling_params)
        if not isinstance(returned, Sample):
            raise EnvFatalError(f"a rollout function must return the sample, not {returned!r:.80}")
        if returned.status in (Sample.Status.FAILED, Sample.Status.ABORTED):
            raise EnvFatalError(f"the rollout function returned the sample as {returned.status.value}")
        self._check_tokens(returned)
        self._check_rest(returned)
        return None if returned.reward is None else returned.get_reward_value(context.args)

    def _check_tokens(self, sample: Sample) -> None:
        """What is trained is what the engine generated; a function that returns other tokens would wait for those."""
        known = self.context.known
        if not sample.tokens or known is None:
            return
        told = np.asarray(sample.tokens[: len(known)], np.int32)
        if not np.array_equal(told, known[: len(told)]):
            raise EnvFatalError("the rollout function returned other tokens than the model wrote and it observed")

    def _check_rest(self, sample: Sample) -> None:
        """What slime would train by and is not used here: it is an error where it would change what is trained."""
        if sample.remove_sample:
            raise AgentLoadError(
                f"{SAMPLE_HAS} remove_sample, which would be ignored: raise EnvFatalError where a sample must not be "
                "trained, and another attempt takes its place"
            )
        if any(map(_holds_images, (sample.multimodal_inputs, sample.multimodal_train_inputs))):
            raise AgentLoadError(
                f"{SAMPLE_HAS} images in multimodal_inputs, which would be ignored: show them to the model by "
                "context.observe, as messages with images"
            )
        mask, written = [] if sample.loss_mask is None else list(sample.loss_mask), self.context.written
        if mask[: len(written)] != written[: len(mask)] or any(mask[len(written) :]):
            raise AgentLoadError(
                f"{SAMPLE_HAS} a loss_mask that would be ignored, as what the model wrote is trained and nothing else: "
                "leave it out"
            )


def _holds_images(inputs: Any) -> bool:
    return inputs is not None and any(value is not None and len(value) for value in inputs.values())


def function_loop(name: str, function: Any) -> Callable[[AgentContext], FunctionAgent]:
    """What makes the loop of one sample from a rollout function that goes by this name.

    Raises:
        AgentLoadError: it is no `async def generate(args, sample, sampling_params)`.
    """
    if "rollout_id" in inspect.signature(function).parameters:
        raise AgentLoadError(
            f"agent loop {name!r} is a function of a whole rollout: give one of a single sample, "
            "async def generate(args, sample, sampling_params)"
        )
    try:
        inspect.signature(function).bind(None, None, {})
    except TypeError as error:
        raise AgentLoadError(
            f"agent loop {name!r} must be async def generate(args, sample, sampling_params): {error}"
        ) from error
    return functools.partial(FunctionAgent, function=function)
