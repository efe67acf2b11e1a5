"""One loop in a task of its own, which goes on when it is answered and stands still while the turn loop generates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from stream_rl.agents.context import AgentContext, enter_context
from stream_rl.agents.handover import GIVEN_UP, Answer, Handover, Pause
from stream_rl.envs.base import is_finite
from stream_rl.errors import EnvFatalError, EnvInfraError

__all__ = ["AgentRun", "Loop"]

logger = logging.getLogger(__name__)


class Loop(Protocol):
    """What a loop must have."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> float | None:
        """Plays the sample."""


class AgentRun:
    """Drives a loop from answer to answer."""

    def __init__(self, loop: Loop, context: AgentContext, handover: Handover) -> None:
        self._loop = loop
        self._context = context
        self._handover = handover
        self._task: asyncio.Task[float | None] | None = None

    async def start(self, row: Mapping[str, Any]) -> Pause:
        """Runs the loop up to its first `generate`. Raises whatever the loop raises."""
        self._task = asyncio.create_task(self._run(row))
        self._task.add_done_callback(lambda _: self._handover.ended())
        return await self._next_pause()

    async def go_on(self, answer: Answer) -> Pause:
        """Answers the loop, and runs it up to its next `generate` or its end. Raises whatever the loop raises."""
        self._handover.answer(answer)
        return await self._next_pause()

    async def cancel(self, timeout: float) -> bool:
        """Ends the loop, whose `finally` may take `timeout` seconds; whether it took no longer."""
        if self._task is None:
            return True
        self._task.cancel()
        _, late = await asyncio.wait([self._task], timeout=timeout)
        if not late and not self._task.cancelled() and (error := self._task.exception()) is not None:
            logger.info("an agent loop that had ended: %s: %s", type(error).__name__, error)
        return not late

    async def _run(self, row: Mapping[str, Any]) -> float | None:
        enter_context(self._context)
        try:
            return await self._loop.run(dict(self._context.sampling_params), **row)
        except SystemExit as error:  # of a task it would end the event loop, and every other sample with it
            raise EnvInfraError(f"SystemExit: {error}", cause="unknown") from error

    async def _next_pause(self) -> Pause:
        pause = await self._handover.next_pause()
        if pause.done:
            assert self._task is not None
            if self._task.cancelled():
                raise EnvInfraError("the agent loop was cancelled from inside", cause="unknown")
            reward = self._task.result()
            if self._handover.given_up:
                raise EnvFatalError(GIVEN_UP)
            if not self._handover.turn:
                raise EnvFatalError("the agent loop returned without a generation: there is nothing to train on")
            pause.reward += _number(reward)
        return pause


def _number(reward: float | None) -> float:
    if reward is None:
        return 0.0
    if is_finite(reward):
        return float(reward)
    raise EnvFatalError(f"an agent loop must return a finite number or None, not {reward!r:.80}")
