"""What a model's chat template can do, tried once before a run: what can be appended to it, and what it rewrites.

An observation is usable when its delta does not depend on what came before: after a longer conversation, a system
message or another tool round it must be the same, and the tools must stay where the first prompt showed them. A
context that the template itself refuses proves nothing: prompts of that kind are refused by name, and the others are
usable. History that the template rewrites (thinking stripped, white space trimmed) is reported, not refused: the
stream of ids is what the model saw.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stream_rl.envs.base import Message
from stream_rl.errors import ModelError
from stream_rl.producer.chat_delta import SENTINEL, Delta, assistant_turns, find_delta

if TYPE_CHECKING:
    from stream_rl.producer.chat import ChatEncoder

__all__ = ["KINDS", "ProbeReport", "kind_of", "probe"]

OBSERVATION = "Zq7ObservationBq7Z"
SYSTEM = "Zq7SystemCq7Z"
TOOL = "Zq7ToolDq7Z"
THINKING = "<think>\nReason.\n</think>\n\nAnswer."
PADDED = "  padded \n"
QUESTION: Message = {"role": "user", "content": "q"}
INSTRUCTED: Sequence[Message] = ({"role": "system", "content": SYSTEM}, QUESTION)
NO_PARAMETERS = {"type": "object", "properties": {}}
ANY_TOOL = {"type": "function", "function": {"name": TOOL, "description": "Answers.", "parameters": NO_PARAMETERS}}

KINDS: Mapping[str, Sequence[Message]] = {
    "user": [{"role": "user", "content": OBSERVATION}],
    "tool": [{"role": "tool", "name": "tool", "tool_call_id": "call00000", "content": OBSERVATION}],
    "tools": [
        {"role": "tool", "name": "tool", "tool_call_id": f"call0000{number}", "content": OBSERVATION}
        for number in range(2)
    ],
}


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What was found.

    refused        kinds of observations (user, tool, tools) that cannot be appended, and why
    beside_tools   the same for those that only tools in the prompt make unusable
    system         why a prompt cannot have a system message; empty where it can
    tools_shown    whether the model reads of tools that the template is given
    """

    model: str
    refused: Mapping[str, str]
    beside_tools: Mapping[str, str]
    system: str
    append_only: bool
    thinking_kept: bool
    white_space_kept: bool
    tools_shown: bool

    def __str__(self) -> str:
        usable = [kind for kind in KINDS if kind not in self.refused]
        notes = [f"usable observations: {', '.join(usable) or 'none'}"]
        notes.append(f"tools are {'shown' if self.tools_shown else 'not shown'} to the model")
        notes += [f"{kind} observations refused: {reason}" for kind, reason in self.refused.items()]
        notes += [f"beside tools, {kind} observations refused: {reason}" for kind, reason in self.beside_tools.items()]
        notes += [f"system messages refused: {self.system}"] if self.system else []
        rewritten = {
            "history rewritten": self.append_only,
            "thinking stripped from history": self.thinking_kept,
            "white space trimmed from history": self.white_space_kept,
        }
        notes += [note for note, kept in rewritten.items() if not kept]
        return f"chat template of {self.model}: {'; '.join(notes)}"


def kind_of(observation: Sequence[Message]) -> str:
    """The kind of an observation: one message of role tool, several, or anything else, which stands as a user's."""
    tools = sum(message["role"] == "tool" for message in observation)
    return "user" if not tools else "tool" if tools == 1 else "tools"


def probe(chat: ChatEncoder, tools: Sequence[Mapping[str, Any]] = ()) -> ProbeReport:
    """Tries a model's template; `tools` are the schemas that its template arguments hold."""
    refused = _refusals(chat, tools)
    system = _system_refusal(chat)
    if tools:
        beside_tools: Mapping[str, str] = {}
        shown = _all_shown(chat, tools)
    else:
        with_tools = chat.showing([ANY_TOOL])
        shown = _all_shown(with_tools, [ANY_TOOL])
        found = _refusals(with_tools, [ANY_TOOL]) if shown else {}
        beside_tools = {kind: reason for kind, reason in found.items() if kind not in refused}
    return ProbeReport(
        model=chat.name,
        refused=refused,
        beside_tools=beside_tools,
        system=system,
        append_only=_append_only(chat),
        thinking_kept="Reason." in _history(chat, THINKING),
        white_space_kept=PADDED in _history(chat, PADDED),
        tools_shown=shown,
    )


def _refusals(chat: ChatEncoder, tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    names = [str(tool["function"]["name"]) for tool in tools]
    return {kind: reason for kind, messages in KINDS.items() if (reason := _refusal(chat, messages, names))}


def _refusal(chat: ChatEncoder, messages: Sequence[Message], names: Sequence[str]) -> str:
    try:
        chat.check_delta(messages)
        delta = find_delta(chat.render, chat.stops, messages)
    except ModelError as error:
        return str(error)
    conversation = _round(chat, messages)
    for name, context in _contexts(chat, messages, conversation):
        try:
            other: Delta | None = find_delta(chat.render, chat.stops, messages, context)
        except ModelError:
            other = None
        if other != delta:
            return f"what follows a turn is different after {name}"
    return "the template moves its tools behind what the model has read" if _moved(chat, conversation, names) else ""


def _contexts(
    chat: ChatEncoder, messages: Sequence[Message], conversation: Sequence[Message]
) -> list[tuple[str, Sequence[Message]]]:
    contexts: list[tuple[str, Sequence[Message]]] = [
        ("a longer conversation", [QUESTION, {"role": "assistant", "content": "Hi."}, QUESTION])
    ]
    if _rendered(chat, INSTRUCTED):
        contexts.append(("a system message", INSTRUCTED))
    if kind_of(messages) != "user":
        contexts.append(("another tool round", conversation))
    return contexts


def _round(chat: ChatEncoder, messages: Sequence[Message]) -> Sequence[Message]:
    """A question, an answer in the first form that the template takes, and the observation."""
    conversations = ([QUESTION, assistant, *messages] for assistant in assistant_turns(messages))
    return next(conversation for conversation in conversations if SENTINEL in _rendered(chat, conversation))


def _moved(chat: ChatEncoder, conversation: Sequence[Message], names: Sequence[str]) -> bool:
    """Whether the prompt's text up to the last tool's name is another once the conversation goes on."""
    opening = _rendered(chat, conversation[:1])
    shown = opening[: max((opening.rfind(name) + len(name) for name in names if name in opening), default=0)]
    return not _rendered(chat, conversation).startswith(shown)


def _system_refusal(chat: ChatEncoder) -> str:
    try:
        text = chat.render(INSTRUCTED, True)
    except Exception as error:  # a template may raise anything
        return f"the template raises {str(error)[:80]!r}"
    return "" if SYSTEM in text else "the template drops them in silence"


def _all_shown(chat: ChatEncoder, tools: Sequence[Mapping[str, Any]]) -> bool:
    prompt = _rendered(chat, [QUESTION])
    return all(str(tool["function"]["name"]) in prompt for tool in tools)


def _history(chat: ChatEncoder, answer: str) -> str:
    answers = [{"role": "assistant", "content": content} for content in (answer, SENTINEL)]
    return _rendered(chat, [QUESTION, answers[0], QUESTION, answers[1]], prompt=False)


def _append_only(chat: ChatEncoder) -> bool:
    messages = [QUESTION, {"role": "assistant", "content": "Answer."}] * 2 + [QUESTION]
    prompts = [_rendered(chat, messages[:length]) for length in (1, 3, 5)]
    return all(prompts) and all(longer.startswith(shorter) for shorter, longer in itertools.pairwise(prompts))


def _rendered(chat: ChatEncoder, messages: Sequence[Message], *, prompt: bool = True) -> str:
    """The template's text; nothing where it raises."""
    try:
        return chat.render(messages, prompt)
    except Exception:  # a template may raise anything
        return ""
