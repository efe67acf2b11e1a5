"""The one object through which a loop reaches the model, the world and the journal.

answer = await context.generate()     commits the turn before, then generates: waits, resumes and budgets are inside
await context.act(function, ...)      calls the world, now and again on a resume
await context.once(function, ...)     calls the world: what a commit has recorded is not called again
context.observe(message)              what the model reads before its next answer
context.reward(0.5)                   what this turn adds to the episode's reward
context.parse_failure()               the answer was no action: counted against `environment.max_parse_failures`
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from stream_rl.agents.chat import Chat
from stream_rl.agents.handover import Answer, Handover
from stream_rl.envs.base import EnvSample, Message, is_finite, is_message
from stream_rl.envs.plain import plain_copy
from stream_rl.errors import EnvFatalError
from stream_rl.sample import Int32

__all__ = ["AgentContext", "Call", "Surroundings", "current_context", "enter_context"]

Call = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a loop finds around it; all of it the context's as well.

    sample           prompt, label, metadata
    messages         the prompt as chat messages, the system prompt in front
    args             `environment.args`, `max_turns` and slime's names of further settings, as attributes
    sampling_params  what generations are sampled with, for information: the trainer counts on them
    chat             the model's
    call             calls a function, a sync one in a thread, within `environment.step_timeout`; names its failures
    """

    sample: EnvSample
    messages: Sequence[Message]
    args: SimpleNamespace
    sampling_params: Mapping[str, Any]
    chat: Chat
    call: Call


class AgentContext:
    """One sample's way to the model and the world.

    Args:
        surroundings: what is given.
        handover: to what drives the loop.
    """

    def __init__(self, surroundings: Surroundings, handover: Handover) -> None:
        self.sample = surroundings.sample
        self.messages = surroundings.messages
        self.args = surroundings.args
        self.sampling_params = dict(surroundings.sampling_params)
        self.chat = surroundings.chat
        self.known: Int32 | None = None
        """The conversation so far of a loop that writes token ids, int32 (n,)."""
        self.written: list[int] = []
        """Of that conversation's ids after the first request's: 1 for each that the model wrote, 0 for the others."""
        self._call = surroundings.call
        self._handover = handover
        self._messages: list[Message] = []

    @property
    def turn(self) -> int:
        """Answers so far."""
        return self._handover.turn

    @property
    def tokenizer(self) -> Any:
        """The model's Hugging Face tokenizer."""
        return self.chat.tokenizer

    @property
    def prompt_text(self) -> str:
        """The prompt as the chat template renders it, up to the first generation."""
        return self.chat.render(self.messages, True)

    def decode(self, tokens: Int32, *, special: bool = False) -> str:
        """Text of token ids, with special tokens if asked for."""
        return self.chat.decode(tokens, special=special)

    def show_tools(self, schemas: Sequence[Mapping[str, Any]]) -> None:
        """Has the chat template show these tools, from the prompt on; before the first `generate`, also of a resume."""
        self.chat = self.chat.showing(schemas)

    def observe(self, *messages: Message) -> None:
        """What the model reads before its next answer: chat messages, rendered together. Nothing is read at the end.

        Raises EnvFatalError for what is no chat message.
        """
        if wrong := [message for message in messages if not is_message(message)]:
            raise EnvFatalError(f"a loop observes chat messages, mappings with role and content, not {wrong[0]!r:.80}")
        self._messages += messages

    def reward(self, value: float) -> None:
        """Adds to the reward of the turn under way. Raises EnvFatalError for what is no finite number."""
        if not is_finite(value):
            raise EnvFatalError(f"a reward must be a finite number, not {value!r:.80}")
        self._handover.pause.reward += float(value)

    def parse_failure(self) -> None:
        """The answer was no action that can be understood; observe something that says so."""
        self._handover.pause.parse_failures += 1

    async def generate(self, *messages: Message) -> Answer:
        """The model's next answer, after `messages` and what was observed before.

        Commits the turn before first. Never returns where the episode ends instead: the loop is cancelled.
        """
        if self.turn and self.known is not None:
            raise EnvFatalError("a loop that began with generate_from must go on with it")
        self.observe(*messages)
        observed, self._messages = tuple(self._messages), []
        return await self._handover.ask(observed)

    async def generate_from(self, tokens: Int32 | Sequence[int]) -> Answer:
        """The model's next answer to a whole conversation in token ids, int32 (n,), which the loop writes itself.

        Raises:
            EnvFatalError: the ids do not begin with the conversation so far, which would be trained on.
        """
        if self.turn and self.known is None:
            raise EnvFatalError("a loop that began with generate must go on with it")
        ids = np.asarray(tokens, np.int32)
        known = ids[:0] if self.known is None else self.known
        if not np.array_equal(ids[: len(known)], known):
            raise EnvFatalError(
                f"generate_from must begin with the {len(known)} tokens of the conversation so far: "
                f"{self.decode(known, special=True)!r:.200}, not {self.decode(ids[: len(known)], special=True)!r:.200}"
            )
        self.known = ids
        self.written += [0] * (len(ids) - len(known) if self.turn else 0)
        answer = await self._handover.ask(ids[len(known) :])
        self.known = np.concatenate([ids, answer.tokens])
        self.written += [1] * len(answer.tokens)
        return answer

    async def act(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """The answer of a function of the world, sync (in a thread) or async; called again on a resume.

        Raises:
            EnvInfraError: it failed or took longer than `environment.step_timeout`; let it pass, and the loop is
                brought back and goes on from its last answer.
        """
        return await self._call(functools.partial(function, *args, **named))

    async def once(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """As `act`, but recorded with the turn's commit: from then on a resume gets the same answer without a call.

        For what may answer otherwise the next time, or is dear. A death between the call and the commit leaves no
        answer, and the call is made again. Calls are told apart by their order, and belong to the turn in which they
        are awaited. The answer is plain JSON; a dataclass is kept as the mapping of its fields.

        Raises:
            EnvFatalError: the answer is not JSON.
        """
        number, results = self._handover.calls, self._handover.results
        self._handover.calls += 1
        if number not in results:
            result = await self.act(function, *args, **named)
            try:
                results[number] = plain_copy(_fields(result))
            except TypeError as error:
                raise EnvFatalError(f"once keeps plain JSON, not {result!r:.80}: {error}") from error
        return results[number]


def _fields(result: Any) -> Any:
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else result


_current: contextvars.ContextVar[AgentContext] = contextvars.ContextVar("agent_context")


def current_context() -> AgentContext:
    """The context of the loop that this is called in, for functions that are not handed it. Raises LookupError."""
    return _current.get()


def enter_context(context: AgentContext) -> None:
    """Makes a context the current one of this task, and of the tasks that it starts."""
    _current.set(context)
