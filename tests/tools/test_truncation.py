"""Results of a bounded number of tokens, on a real byte-level tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from stream_rl.tools.truncation import CUT, truncate


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with merges, so that pieces of text encode otherwise than the whole."""
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokens.train_from_iterator(["the result of the search is the third of the results, 12 of 123"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokens)


@given(text=st.text(max_size=400), limit=st.integers(9, 60), side=st.sampled_from(["left", "middle", "right"]))
def test_a_result_never_has_more_tokens_than_allowed_and_is_whole_where_it_fits(tokenizer, text, limit, side):
    cut = truncate(text, limit, side, tokenizer)
    count = len(tokenizer.encode(text, add_special_tokens=False))

    assert len(tokenizer.encode(cut, add_special_tokens=False)) <= limit
    assert cut == text if count <= limit else CUT.strip() in cut
    cut.encode()


def test_each_side_keeps_the_other(tokenizer):
    text = " ".join(str(number) for number in range(1000))

    left, middle, right = (truncate(text, 40, side, tokenizer) for side in ("left", "middle", "right"))
    assert left.startswith(CUT)
    assert left.endswith("998 999")
    assert middle.startswith("0 1 2")
    assert middle.endswith("999")
    assert right.startswith("0 1 2")
    assert right.endswith(CUT)


def test_a_long_text_is_encoded_at_its_ends_only(tokenizer):
    seen: list[int] = []

    class Watched:
        def encode(self, text, **options):
            seen.append(len(text))
            return tokenizer.encode(text, **options)

        def decode(self, ids, **options):
            return tokenizer.decode(ids, **options)

    truncate("the result " * 1_000_000, 64, "middle", Watched())
    assert sum(seen) < 10_000
