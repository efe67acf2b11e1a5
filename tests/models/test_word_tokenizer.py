"""The tokenizers of whole words: ids and text come back from one another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from stream_rl.models.tiny_text import WORDS, tiny_tokenizer
from stream_rl.models.tiny_vlm import VLM_WORDS, vlm_tokenizer

both = pytest.mark.parametrize(("tokenizer", "words"), [(tiny_tokenizer(), WORDS), (vlm_tokenizer(), VLM_WORDS)])


@both
def test_each_word_is_one_token(tokenizer: PreTrainedTokenizerFast, words: tuple[str, ...]) -> None:
    assert len(words) == len(set(words)) == len(tokenizer)
    assert [tokenizer.encode(word, add_special_tokens=False) for word in words] == [[n] for n in range(len(words))]


@both
@given(data=st.data())
def test_ids_come_back_from_their_text(tokenizer: PreTrainedTokenizerFast, words: tuple[str, ...], data) -> None:
    ids = data.draw(st.lists(st.integers(0, len(words) - 1)))
    assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) == ids


@both
@given(data=st.data())
def test_text_of_words_spaces_and_newlines_comes_back(tokenizer, words, data) -> None:
    plain = st.sampled_from([word for word in words if word.isalnum()])
    text = data.draw(st.lists(st.lists(plain, min_size=1).map(" ".join), min_size=1).map("\n".join))
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@both
def test_unknown_words_become_unk(tokenizer: PreTrainedTokenizerFast, words: tuple[str, ...]) -> None:
    ids = tokenizer.encode("user elephants", add_special_tokens=False)
    assert ids == [words.index("user"), words.index("<unk>")]
