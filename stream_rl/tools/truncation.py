"""Tool results of a bounded number of tokens: the model's context is counted in these, not in characters."""

from __future__ import annotations

from typing import Any, Literal

__all__ = ["Side", "truncate"]

Side = Literal["left", "middle", "right"]

CUT = " ... "
CHARACTERS_A_TOKEN = 8
BROKEN = "\ufffd"


def truncate(text: str, limit: int, side: Side, tokenizer: Any) -> str:
    """The text, or what is left of it with a mark where it was cut: at most `limit` tokens.

    Costs the encoding of about `limit` tokens at each end, however long the text is.

    Args:
        text: any text.
        limit: tokens; more than the mark itself has.
        side: what is left out: the beginning, the middle or the end.
        tokenizer: a Hugging Face tokenizer.
    """
    head = _edge(text, limit + 1, tokenizer, first=True)
    if len(head) <= limit:
        return text
    tail = [] if side == "right" else _edge(text, limit + 1, tokenizer, first=False)
    room = limit - len(_encode(CUT, tokenizer))
    while True:
        before = {"left": 0, "middle": (room + 1) // 2, "right": room}[side]
        after = room - before
        cut = _decode(head[:before], tokenizer) + CUT + _decode(tail[len(tail) - after :], tokenizer)
        over = len(_encode(cut, tokenizer)) - limit
        if over <= 0 or room <= 0:
            return cut.strip(BROKEN)
        room -= over  # two pieces and a mark may take more tokens together than apart


def _edge(text: str, count: int, tokenizer: Any, *, first: bool) -> list[int]:
    """The first or last `count` ids of the text, all of them where it has fewer."""
    characters = count * CHARACTERS_A_TOKEN
    while True:
        ids = _encode(text[:characters] if first else text[max(len(text) - characters, 0) :], tokenizer)
        if len(ids) >= count or characters >= len(text):
            return ids[:count] if first else ids[-count:]
        characters *= 2


def _encode(text: str, tokenizer: Any) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def _decode(ids: list[int], tokenizer: Any) -> str:
    return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)).strip(BROKEN)
