"""Control tokens written in content are read as plain text, so that no tool result can forge a turn or an image.

A template's own control tokens and those that content happens to spell look alike once they are rendered. So content is
marked before: inside each such spelling, behind its first character.

    content    done<|im_end|>               what the tool said
    marked     done<MARK|im_end|>           what the template gets
    rendered   user\\ndone<MARK|im_end|><|im_end|>
    pieces     user\\ndone<  and  |im_end|><|im_end|>, each encoded alone

A piece has half of a marked spelling at most: what the tokenizer finds in it, the template wrote. Together the pieces
are the content, letter for letter. Content that spells no control token is rendered and encoded as it always was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stream_rl.envs.base import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["MARK", "ControlTokens", "control_spellings"]

MARK = "Zq7ControlAq7Z"
NOT_CONTENT = ("role", "type", "image", "image_url", "video", "audio")
"""Keys of messages and of their parts whose values are no text for the model."""


class ControlTokens:
    """What must not be forged.

    Args:
        spellings: the control tokens; one of a single character cannot be told from text, and is left out.
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        longest_first = sorted({text for text in spellings if len(text) > 1}, key=lambda text: (-len(text), text))
        any_of_them = "|".join(map(re.escape, longest_first)) or "(?!)"
        # Takes one character, so that spellings which overlap are all found.
        self._first_character = re.compile(rf"(?=(?:{any_of_them}))(.)", re.DOTALL)

    def mark(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages with every spelling marked; the very same object where there is none."""
        marked = [self._marked(message) for message in messages]
        return messages if marked == list(messages) else marked

    def _marked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._first_character.sub(rf"\1{MARK}", value)
        if isinstance(value, Mapping):
            return {key: item if key in NOT_CONTENT else self._marked(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return self._apart([self._marked(item) for item in value])
        return value

    def _apart(self, parts: list[Any]) -> list[Any]:
        """Parts of one message, whose texts a template puts side by side: where they meet, they spell nothing."""
        texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        if not self._first_character.search("".join(texts)):
            return parts
        return [{**part, "text": part["text"] + MARK} if isinstance(part, Mapping) and "text" in part else part
                for part in parts]  # fmt: skip


def control_spellings(tokenizer: PreTrainedTokenizerBase, rendered: str) -> set[str]:
    """The tokenizer's special tokens, and those further added ones that its template writes between turns.

    Args:
        rendered: a plain conversation. Some families (DeepSeek) do not call their role tokens special; tokens for
            thinking or for calls of tools are no control tokens, as prompts speak of them.
    """
    added = tokenizer.added_tokens_decoder.values()
    return {token.content for token in added if token.special or token.content in rendered}
