"""Much text is encoded in a thread, so that the samples of one event loop do not wait for one of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from stream_rl.models.tiny_text import tiny_tokenizer
from stream_rl.producer.chat import THREADED_CHARACTERS, ChatEncoder

ENDED = np.array([tiny_tokenizer().eos_token_id], np.int32)


@pytest.fixture
def chat() -> ChatEncoder:
    tokenizer = tiny_tokenizer()
    return ChatEncoder(tokenizer, (tokenizer.eos_token_id,))


@pytest.mark.parametrize(("words", "elsewhere"), [(5, False), (THREADED_CHARACTERS, True)])
async def test_it_is_encoded_apart_and_the_same(chat, monkeypatch, words, elsewhere):
    messages = [{"role": "user", "content": "guess " * words}]
    prompt, observation = chat.encode_prompt(messages), chat.encode_observation(messages, ENDED)
    chat._remembered.cache_clear()
    threads = []
    render = chat.render
    monkeypatch.setattr(chat, "render", lambda *given: threads.append(threading.current_thread()) or render(*given))

    shown = [await chat.show_prompt(messages), await chat.show_observation(messages, ENDED)]

    assert [one.tokens.tolist() for one in shown] == [prompt.tolist(), observation.tolist()]
    assert len(threads) == 3
    assert [thread is not threading.main_thread() for thread in threads] == [elsewhere] * 3
