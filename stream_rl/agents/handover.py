"""How a loop and what drives it take turns: the loop hands over what it did and stands still until it is answered.

    loop     ask(observed) ─────┐            ┌──► goes on ── ask(observed) ── ...
    driver   next_pause() ◄─────┘── answer() ┘                └──► next_pause()

Loops see nothing of it but their `AgentContext`; `AgentRun` is the driver's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stream_rl.envs.base import Message
from stream_rl.errors import EnvFatalError
from stream_rl.sample import Float32, Int32

__all__ = ["GIVEN_UP", "Answer", "Handover", "Observed", "Pause"]

GIVEN_UP = "a loop must wait until its answer comes: a generate that was cancelled, by a time-out too, ends it"

Observed = Sequence[Message] | Int32
"""Messages for the model, or token ids where the loop writes these itself."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said in one turn.

    text            without special tokens
    tokens          int32 (g,), the end token included
    log_probs       float32 (g,)
    finish_reason   "stop", or "length" where a budget cut it: then the episode ends, whatever the loop asks for next
    weight_version  of the last token
    """

    text: str
    tokens: Int32
    log_probs: Float32
    finish_reason: str = "stop"
    weight_version: str = ""


@dataclass(slots=True)
class Pause:
    """What a loop did since its last answer, handed over when it wants the next one or has returned (`done`).

    parse_failures  actions of the model that could not be understood
    """

    observed: Observed = ()
    reward: float = 0.0
    parse_failures: int = 0
    done: bool = False


class Handover:
    """One sample's, for as long as its loop runs.

    pause    what the loop has done so far in this turn
    turn     answers so far
    results  what `once` has recorded, by the number of the call; results that are new are added
    calls    how often `once` was called
    """

    def __init__(self, results: dict[int, Any] | None = None) -> None:
        self.pause = Pause()
        self.turn = 0
        self.results: dict[int, Any] = {} if results is None else results
        self.calls = 0
        self._answer: asyncio.Future[Answer] | None = None
        self._pauses: asyncio.Queue[Pause] = asyncio.Queue()

    async def ask(self, observed: Observed) -> Answer:
        """The loop's: hands over, and waits for the answer.

        The wait has no deadline of its own: whoever drives the loop answers it or cancels it.

        Raises:
            EnvFatalError: it waits for one already, or gave up a wait: that answer would be taken for this one's.
        """
        if self._answer is not None and not self._answer.done():
            raise EnvFatalError("a loop may wait for one answer at a time")
        if self.given_up:
            raise EnvFatalError(GIVEN_UP)
        self._answer = asyncio.get_running_loop().create_future()
        self._hand_over(observed)
        return await self._answer

    @property
    def given_up(self) -> bool:
        """Whether the loop cancelled its wait for the newest answer."""
        return self._answer is not None and self._answer.cancelled()

    async def next_pause(self) -> Pause:
        """The driver's: what the loop did until it wanted an answer, or returned."""
        return await self._pauses.get()

    def answer(self, answer: Answer) -> None:
        """The driver's: lets the loop go on, if it still waits."""
        assert self._answer is not None
        self.turn += 1
        if not self.given_up:
            self._answer.set_result(answer)

    def ended(self) -> None:
        """The driver's: the loop has returned or failed; `next_pause` says so."""
        self._hand_over((), done=True)

    def _hand_over(self, observed: Observed, *, done: bool = False) -> None:
        pause, self.pause = self.pause, Pause()
        pause.observed, pause.done = observed, done
        self._pauses.put_nowait(pause)
