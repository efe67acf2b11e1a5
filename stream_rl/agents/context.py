"""The one object through which a loop reaches the model, the world and the journal.

answer = await context.generate()     commits the turn before, then generates: waits, resumes and budgets are inside
await context.act(function, ...)      calls the world, now and again on a resume
await context.once(function, ...)     calls the world once: a resume gets the recorded result
context.observe(message)              what the model reads before its next answer
context.reward(0.5)                   what this turn adds to the episode's reward
context.parse_failure()               the answer was no action: counted against `environment.max_parse_failures`
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import orjson

from stream_rl.envs.base import EnvSample, Message, is_finite
from stream_rl.errors import EnvFatalError
from stream_rl.sample import Float32, Int32

__all__ = [
    "AgentContext", "Answer", "Chat", "Observed", "Pause", "Surroundings", "current_context", "enter_context",
]  # fmt: skip

Observed = Sequence[Message] | Int32
Call = Callable[[Callable[[], Any]], Awaitable[Any]]


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

    observed        messages for the model, or token ids where the loop writes these itself
    parse_failures  actions of the model that could not be understood
    """

    observed: Observed = ()
    reward: float = 0.0
    parse_failures: int = 0
    done: bool = False


class TemplateReport(Protocol):
    """What a chat template can do."""

    @property
    def refused(self) -> Mapping[str, str]:
        """The kinds of observations ("user", "tool", "tools") that it cannot take, and why."""

    @property
    def tools_shown(self) -> bool | None:
        """Whether its prompts show the tools; None without tools."""


class Chat(Protocol):
    """The model's chat form, as far as a loop may use it."""

    @property
    def report(self) -> TemplateReport:
        """What the template can do."""

    def showing(self, tools: Sequence[Mapping[str, Any]]) -> Chat:
        """The same with these tools for the template."""

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer."""

    def decode(self, ids: Int32, *, special: bool = False) -> str:
        """Text of ids, without special tokens unless asked for."""

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The template's text of a conversation."""

    def encode_prompt(self, messages: Sequence[Message]) -> Int32:
        """Ids of a conversation up to the first generation, int32 (p,). Raises ModelError."""

    def encode_observation(self, messages: Sequence[Message], generated: Int32) -> Int32:
        """Ids from the end of a generated turn up to the next generation, int32 (o,). Raises ModelError."""


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
        results: what `once` has recorded, by its number; results that are new are added.
    """

    def __init__(self, surroundings: Surroundings, results: dict[int, Any] | None = None) -> None:
        self.sample = surroundings.sample
        self.messages = surroundings.messages
        self.args = surroundings.args
        self.sampling_params = dict(surroundings.sampling_params)
        self.turn = 0
        self.chat = surroundings.chat
        self._call = surroundings.call
        self._results = {} if results is None else results
        self.calls_once = 0
        """For who drives the loop: how often `once` was called."""
        self.known: Int32 | None = None
        """The conversation so far of a loop that writes token ids, int32 (n,)."""
        self._messages: list[Message] = []
        self._pause = Pause()
        self._answer: asyncio.Future[Answer] | None = None
        self._pauses: asyncio.Queue[Pause] = asyncio.Queue()

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
        """What the model reads before its next answer: chat messages, rendered together. Nothing is read at the end."""
        self._messages += messages

    def reward(self, value: float) -> None:
        """Adds to the reward of the turn under way. Raises EnvFatalError for what is no finite number."""
        if not is_finite(value):
            raise EnvFatalError(f"a reward must be a finite number, not {value!r}")
        self._pause.reward += float(value)

    def parse_failure(self) -> None:
        """The answer was no action that can be understood; observe something that says so."""
        self._pause.parse_failures += 1

    async def generate(self, *messages: Message) -> Answer:
        """The model's next answer, after `messages` and what was observed before.

        Commits the turn before first. Never returns where the episode ends instead: the loop is cancelled.
        """
        if self.turn and self.known is not None:
            raise EnvFatalError("a loop that began with generate_from must go on with it")
        self.observe(*messages)
        observed, self._messages = tuple(self._messages), []
        return await self._ask(observed)

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
        answer = await self._ask(ids[len(known) :])
        self.known = np.concatenate([ids, answer.tokens])
        return answer

    async def act(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """The answer of a function of the world, sync (in a thread) or async; called again on a resume.

        Raises:
            EnvInfraError: it failed or took longer than `environment.step_timeout`; let it pass, and the loop is
                brought back and goes on from its last answer.
        """
        return await self._call(functools.partial(function, *args, **named))

    async def once(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """As `act`, but recorded with the turn: a resume gets the same answer without a call.

        For what must not happen twice, and for what may answer otherwise the next time. Calls are told apart by their
        order, and belong to the turn in which they are awaited. The answer is plain JSON.

        Raises:
            EnvFatalError: the answer is not JSON.
        """
        number = self.calls_once
        self.calls_once += 1
        if number not in self._results:
            result = await self.act(function, *args, **named)
            try:
                self._results[number] = orjson.loads(orjson.dumps(result))
            except TypeError as error:
                raise EnvFatalError(f"once keeps plain JSON, not {result!r:.80}: {error}") from error
        return self._results[number]

    async def next_pause(self) -> Pause:
        """For who drives the loop: what it did until it wanted an answer."""
        return await self._pauses.get()

    def ended(self) -> None:
        """For who drives the loop: it has returned or failed; `next_pause` says so."""
        self._hand_over((), done=True)

    def answer(self, answer: Answer) -> None:
        """For who drives the loop: lets it go on."""
        assert self._answer is not None
        self.turn += 1
        self._answer.set_result(answer)

    async def _ask(self, observed: Observed) -> Answer:
        if self._answer is not None and not self._answer.done():
            raise EnvFatalError("a loop may wait for one answer at a time")
        self._answer = asyncio.get_running_loop().create_future()
        self._hand_over(observed)
        return await self._answer

    def _hand_over(self, observed: Observed, *, done: bool = False) -> None:
        pause, self._pause = self._pause, Pause()
        pause.observed, pause.done = observed, done
        self._pauses.put_nowait(pause)


_current: contextvars.ContextVar[AgentContext] = contextvars.ContextVar("agent_context")


def current_context() -> AgentContext:
    """The context of the loop that this is called in, for functions that are not handed it. Raises LookupError."""
    return _current.get()


def enter_context(context: AgentContext) -> None:
    """Makes a context the current one of this task, and of the tasks that it starts."""
    _current.set(context)
