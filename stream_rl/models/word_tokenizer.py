"""A tokenizer of whole words with a chat template, for models that know a few dozen of them.

Invariants: a word is one token and so is a newline; spaces only separate words and are no tokens;
`encode(decode(ids)) == ids` for every sequence, and text of words, single spaces and newlines comes back as it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

__all__ = ["word_tokenizer"]


def word_tokenizer(
    words: Sequence[str], chat_template: str, *, marks: Sequence[str], context_length: int, **special: str
) -> PreTrainedTokenizerFast:
    """The tokenizer of `words`: the id of a word is its place.

    Args:
        words: distinct; `<unk>`, `<pad>`, `<|im_end|>` (the end of a turn) and a newline among them.
        marks: those words that are written without spaces around them; each is a special token.
        special: further special tokens by their roles, for instance `bos_token="<bos>"`.
    """
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split("\n", "isolated")]
    )
    # Words are joined by spaces, and the spaces around newlines and marks are taken back.
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix="##", cleanup=False),
            decoders.Fuse(),
            *(decoders.Replace(Regex(f" ?{re.escape(mark)} ?"), mark) for mark in ("\n", *marks)),
        ]
    )
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=[mark for mark in marks if mark != "<|im_end|>"],
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
        **special,
    )
    fast.chat_template = chat_template
    return fast
