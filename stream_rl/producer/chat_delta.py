"""Which text follows an assistant turn: the observation delta, found from the right end of a rendered template.

Cutting by the length of a shorter conversation is wrong on most real templates: they rewrite history, or put a newline
after the stop token that the model never writes. Instead a dummy conversation is rendered whose assistant says a
sentinel, and only what follows the LAST sentinel is looked at:

    b = user, assistant(S)                              ...S<|im_end|>\\n
    f = user, assistant(S), observations, prompt        ...S<|im_end|>\\n<|im_start|>user\\n...assistant\\n
                                                            └ close ┘└──────────── rest ─────────────┘

The close is the first stop token of b's tail and must stand at the same place in f's. Where b's tail has none, the stop
is the next role token and opens the rest itself. Anything that does not fit is refused with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from stream_rl.envs.base import Message
from stream_rl.errors import ModelError

__all__ = ["SENTINEL", "Delta", "assistant_turns", "content_text", "find_delta"]

Render = Callable[[Sequence[Message], bool], str]

SENTINEL = "Zq7SentinelAq7Z"
OPENING: tuple[Message, ...] = ({"role": "user", "content": "dummy"},)


class Delta(NamedTuple):
    """What follows an assistant turn: the stop token that closes it (None: the rest opens with it), and the rest."""

    close: str | None
    rest: str


def find_delta(
    render: Render, stops: Sequence[str], observations: Sequence[Message], context: Sequence[Message] = OPENING
) -> Delta:
    """The text between an assistant turn and the next generation.

    Args:
        render: the template: (messages, add_generation_prompt) to text. May raise anything.
        stops: texts of the stop tokens.
        observations: the new messages, all of them: consecutive tool messages are rendered together.
        context: what stands before the assistant turn; the answer should not depend on it.

    Raises:
        ModelError: the template raises, hides the assistant's text, closes the turn differently when something
            follows, or drops an observation.
    """
    reason = "it has no form for an assistant turn"
    for assistant in assistant_turns(observations):
        messages = [*context, assistant]
        try:
            alone, followed = render(messages, False), render([*messages, *observations], True)
        except Exception as error:  # a template may raise anything; another form of the turn may suit it
            reason = f"it raises {str(error)[:80]!r}"
            continue
        if SENTINEL not in alone or SENTINEL not in followed:
            reason = "it does not show the assistant's text"
            continue
        delta = _split(_tail(alone), _tail(followed), stops)
        if delta is None:
            reason = "it closes an assistant turn differently when a message follows"
            continue
        _check_shown(observations, delta.rest)
        return delta
    raise ModelError(f"the chat template cannot be appended to: {reason}")


def _tail(text: str) -> str:
    return text[text.rfind(SENTINEL) + len(SENTINEL) :]


def _split(alone: str, followed: str, stops: Sequence[str]) -> Delta | None:
    first = _first_stop(alone, stops)
    if first is None:
        kept = alone.rstrip()
        return Delta(None, followed[len(kept) :]) if followed.startswith(kept) else None
    at, stop = first
    if _first_stop(followed, stops) != first or followed[:at] != alone[:at]:
        return None
    return Delta(stop, followed[at + len(stop) :])


def _first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return None
    at, _, stop = min(found)
    return at, stop


def _check_shown(observations: Sequence[Message], rest: str) -> None:
    for message in observations:
        for text in map(str.strip, _texts(message)):
            written = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
            if not any(form in rest for form in written):
                raise ModelError(f"the chat template drops observations of role {message['role']!r} in silence")


def content_text(message: Message) -> str:
    """The text of a message whose content is text or a list of parts."""
    return "".join(_texts(message))


def _texts(message: Message) -> list[str]:
    content = message.get("content") or ""
    return [content] if isinstance(content, str) else [part.get("text", "") for part in content]


def assistant_turns(observations: Sequence[Message]) -> Iterator[Message]:
    """Forms that an assistant's turn before these observations may have, the likeliest to fit first."""
    tools = [message for message in observations if message["role"] == "tool"]
    if tools:
        for content in ({"content": SENTINEL}, {"content": ""}, {"content": None}, {}):
            for arguments in ({"q": SENTINEL}, json.dumps({"q": SENTINEL})):
                yield {"role": "assistant", **content, "tool_calls": _calls(tools, arguments)}
    yield {"role": "assistant", "content": SENTINEL}


def _calls(tools: Sequence[Message], arguments: Any) -> list[dict[str, Any]]:
    return [
        {
            "id": tool.get("tool_call_id") or f"call{number:05d}",
            "type": "function",
            "function": {"name": tool.get("name") or "tool", "arguments": arguments},
        }
        for number, tool in enumerate(tools)
    ]
