"""What a model's chat template can do, tried once before a run: what can be appended to it, and what it rewrites.

An observation is usable when its delta does not depend on what came before: after a longer conversation, a system
message or another tool round it must be the same. History that the template rewrites (thinking stripped, white space
trimmed) is reported, not refused: the stream of ids is what the model saw.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stream_rl.envs.base import Message
from stream_rl.errors import ModelError
from stream_rl.producer.chat_delta import SENTINEL, Delta, find_delta

if TYPE_CHECKING:
    from stream_rl.producer.chat import ChatEncoder

__all__ = ["ProbeReport", "probe"]

OBSERVATION = "Zq7ObservationBq7Z"
THINKING = "<think>\nReason.\n</think>\n\nAnswer."
PADDED = "  padded \n"
NOTHING = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What was found. `refused` maps the kinds of observations (user, tool, tools) that cannot be used to why."""

    model: str
    refused: Mapping[str, str]
    append_only: bool
    thinking_kept: bool
    white_space_kept: bool
    tools_shown: bool | None

    def __str__(self) -> str:
        usable = [kind for kind in KINDS if kind not in self.refused]
        notes = [f"{kind} observations refused: {reason}" for kind, reason in self.refused.items()]
        if not self.append_only:
            notes.append("history rewritten")
        if not self.thinking_kept:
            notes.append("thinking stripped from history")
        if not self.white_space_kept:
            notes.append("white space trimmed from history")
        if self.tools_shown is False:
            notes.append("tools are not shown to the model")
        return f"chat template of {self.model}: usable observations: {', '.join(usable) or 'none'}" + "".join(
            f"; {note}" for note in notes
        )


KINDS: Mapping[str, Sequence[Message]] = {
    "user": [{"role": "user", "content": OBSERVATION}],
    "tool": [{"role": "tool", "name": "tool", "tool_call_id": "call00000", "content": OBSERVATION}],
    "tools": [
        {"role": "tool", "name": "tool", "tool_call_id": f"call0000{number}", "content": OBSERVATION}
        for number in range(2)
    ],
}


def probe(chat: ChatEncoder, tools: Sequence[Mapping[str, Any]] = ()) -> ProbeReport:
    """Tries a model's template; `tools` are the schemas that its template arguments hold."""
    refused = {kind: reason for kind, messages in KINDS.items() if (reason := _refusal(chat, messages))}
    shown = None
    if tools:
        prompt = chat.render([{"role": "user", "content": "q"}], True)
        shown = all(str(tool["function"]["name"]) in prompt for tool in tools)
    return ProbeReport(
        model=chat.name,
        refused=refused,
        append_only=_append_only(chat),
        thinking_kept="Reason." in _history(chat, THINKING),
        white_space_kept=PADDED in _history(chat, PADDED),
        tools_shown=shown,
    )


def _refusal(chat: ChatEncoder, messages: Sequence[Message]) -> str:
    try:
        chat.encode_observation(messages, NOTHING)
        delta = find_delta(chat.render, chat.stops, messages)
    except ModelError as error:
        return str(error)
    for name, context in _contexts(messages):
        try:
            other: Delta | None = find_delta(chat.render, chat.stops, messages, context)
        except ModelError:
            other = None
        if other != delta:
            return f"what follows a turn is different after {name}"
    return ""


def _contexts(messages: Sequence[Message]) -> list[tuple[str, Sequence[Message]]]:
    user, assistant = {"role": "user", "content": "a"}, {"role": "assistant", "content": "Hi."}
    contexts: list[tuple[str, Sequence[Message]]] = [
        ("a longer conversation", [user, assistant, user]),
        ("a system message", [{"role": "system", "content": "s"}, user]),
    ]
    if messages[0]["role"] == "tool":
        calls = [
            {"id": tool["tool_call_id"], "type": "function", "function": {"name": "tool", "arguments": {"q": "a"}}}
            for tool in messages
        ]
        contexts.append(
            ("another tool round", [user, {"role": "assistant", "content": "", "tool_calls": calls}, *messages])
        )
    return contexts


def _history(chat: ChatEncoder, answer: str) -> str:
    user, assistant = {"role": "user", "content": "q"}, {"role": "assistant", "content": answer}
    try:
        return chat.render([user, assistant, user, {"role": "assistant", "content": SENTINEL}], False)
    except Exception:  # a template may raise anything; it then shows nothing
        return ""


def _append_only(chat: ChatEncoder) -> bool:
    user, assistant = {"role": "user", "content": "q"}, {"role": "assistant", "content": "Answer."}
    messages = [user, assistant, user, assistant, user]
    try:
        prompts = [chat.render(messages[:length], True) for length in (1, 3, 5)]
    except Exception:  # as above
        return False
    return all(longer.startswith(shorter) for shorter, longer in itertools.pairwise(prompts))
