"""One sample's agent loop, as the turn loop sees it: what an environment is to it, a loop's coroutine is as well.

    turn loop   reset ───────────► step(answer) ───────────► step(answer) ─ ...
    loop        run ─ generate() ──────┘ act, observe, generate() ──┘       return: the episode ends

So a loop needs no way of its own to be resumed, budgeted, committed or fenced. Results of `once` are recorded with the
turn in which they came; of a try that failed they are kept here, so that the next try does not call again. A death
before the commit loses them: those calls are made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from stream_rl.agents.context import AgentContext, Surroundings
from stream_rl.agents.handover import Answer, Handover, Pause
from stream_rl.agents.run import AgentRun
from stream_rl.envs.base import ResumeClass, resume_class
from stream_rl.errors import ActionError, EnvFatalError
from stream_rl.producer.env_session import Shown, Step, plain_state, show
from stream_rl.producer.turn_record import NO_TOKENS
from stream_rl.producer.world_calls import named_failures
from stream_rl.sample import StopReason

__all__ = ["AgentSession"]

logger = logging.getLogger(__name__)


class AgentSession:
    """A loop as a Session.

    Args:
        name: the loop's, for messages.
        make: makes the loop.
        surroundings: what its context offers.
        row: what `run` is given by name.
        timeout: seconds from an answer to the next `generate`: setting `environment.step_timeout`.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[AgentContext], Any],
        surroundings: Surroundings,
        row: Mapping[str, Any],
        timeout: float,
    ) -> None:
        self._name = name
        self._make = make
        self._surroundings = surroundings
        self._row = row
        self._timeout = timeout
        self._results: dict[int, Any] = {}
        self._first_new = 0
        self._handover = Handover()
        self._context = AgentContext(surroundings, self._handover)
        self._loop: Any = None
        self._run: AgentRun | None = None

    @property
    def resume_class(self) -> ResumeClass:
        """How the loop comes back."""
        return resume_class(self._loop)

    async def build(self) -> None:
        """Makes the loop. Raises EnvInfraError, EnvFatalError or UserError."""
        await self.close()
        self._handover = Handover(self._results)
        self._context = AgentContext(self._surroundings, self._handover)
        with self._named():
            self._loop = self._make(self._context)
        if self.resume_class is not ResumeClass.REPLAY:
            self._results.clear()
        self._run = AgentRun(self._loop, self._context, self._handover)

    async def reset(self) -> tuple[Shown, Mapping[str, Any] | None]:
        """Runs the loop up to its first `generate`; the prompt in ids. Raises as `build`, and ModelError."""
        observed = (await self._start()).observed
        if not isinstance(observed, np.ndarray):
            prompt = await self._context.chat.show_prompt([*self._context.messages, *observed])
            return prompt, self._snapshot()
        return observed, self._snapshot()

    async def step(self, answer: Answer) -> Step:
        """Gives the loop an answer. Raises as `build`."""
        pause = await self._go_on(answer)
        if pause.done:
            return self._step(pause, NO_TOKENS, StopReason.MODEL_DONE)
        # By the loop's own chat form, which may show tools.
        return self._step(pause, await show(pause.observed, answer.tokens, self._context.chat))

    async def cut(self, answer: Answer) -> Step:
        """Lets the loop score an answer that was cut."""
        return self._step(await self._go_on(answer), NO_TOKENS)

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Runs a fresh loop with a recorded state up to its `generate`; what it observes before, the model has read."""
        with self._named():
            self._loop.load_state_dict(copy.deepcopy(state))
        await self._start()

    def recall(self, states: Sequence[Mapping[str, Any] | None]) -> None:
        """Takes the number of the turns that a snapshot spares the loop, or the recorded results of `once`."""
        if self.resume_class is ResumeClass.SNAPSHOT:
            self._handover.turn = len(states)
        elif self.resume_class is ResumeClass.REPLAY:
            recorded = {int(number): result for state in states for number, result in (state or {}).items()}
            self._results.update(recorded)
            self._first_new = max(recorded, default=-1) + 1

    async def close(self) -> None:
        """Cancels the loop."""
        run, self._run = self._run, None
        if run is not None and not await run.cancel(self._timeout):
            logger.warning("%s: did not end within environment.step_timeout=%g seconds", self._name, self._timeout)

    async def _start(self) -> Pause:
        assert self._run is not None
        return await self._within(self._run.start(self._row))

    async def _go_on(self, answer: Answer) -> Pause:
        assert self._run is not None
        return await self._within(self._run.go_on(answer))

    def _step(self, pause: Pause, observed: Shown, ends: StopReason | None = None) -> Step:
        state = self._new_results() if self.resume_class is ResumeClass.REPLAY else self._snapshot()
        return Step(observed, ends, pause.reward, state, pause.parse_failures)

    def _snapshot(self) -> Mapping[str, Any] | None:
        if self.resume_class is not ResumeClass.SNAPSHOT:
            return None
        with self._named():
            return plain_state(self._loop.state_dict())

    def _new_results(self) -> Mapping[str, Any] | None:
        """Results of the turn's `once` calls; none while recorded turns are played again."""
        calls = range(self._first_new, self._handover.calls)
        self._first_new = max(self._first_new, self._handover.calls)
        return {str(number): self._results[number] for number in calls if number in self._results} or None

    async def _within(self, advance: Awaitable[Pause]) -> Pause:
        with self._named():
            async with asyncio.timeout(self._timeout):
                return await advance

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            with named_failures(self._timeout, passes=(ActionError,)):
                yield
        except ActionError as error:
            message = f"agent loop {self._name}: it must catch ActionError, and observe what it says: {error}"
            raise EnvFatalError(message) from error
