"""Images in requests: one placeholder each, and nothing sent where placeholders and features disagree."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from stream_rl.engine.generation import ImageInputs, SamplingParams, check_read, decode_generation, encode_request
from stream_rl.errors import EngineRejected, PromptMismatch

ASKED = SamplingParams(4)


def body(ids: list[int], tokens: tuple[int, ...]) -> dict[str, object]:
    data = tuple(orjson.Fragment(b'"data:image;base64,%d"' % number) for number in range(len(tokens)))
    images = ImageInputs(9, tokens, data)
    request = encode_request(np.array(ids, np.int32), ASKED, rid="r", extra_key=None, images=images)
    decoded: dict[str, object] = orjson.loads(orjson.dumps(request, option=orjson.OPT_SERIALIZE_NUMPY))
    return decoded


def test_an_engine_is_sent_one_placeholder_for_each_image_and_the_images_in_order():
    sent = body([1, 9, 9, 9, 2, 9, 9, 3], (3, 1, 1))

    assert sent["input_ids"] == [1, 9, 2, 9, 9, 3]
    assert sent["image_data"] == ["data:image;base64,0", "data:image;base64,1", "data:image;base64,2"]


def test_a_prompt_without_images_is_sent_as_it_is():
    assert "image_data" not in encode_request(np.array([1, 9], np.int32), ASKED, rid="r", extra_key=None)


@pytest.mark.parametrize(
    ("ids", "tokens", "reason"),
    [
        ([1, 9, 9], (1,), "2 placeholders for 1 features of 1 images"),
        ([1, 2], (1,), "0 placeholders for 1 features"),
        ([9, 1, 9], (2,), "do not stand side by side"),
    ],
)
def test_what_disagrees_is_not_sent(ids, tokens, reason):
    with pytest.raises(EngineRejected, match=reason):
        body(ids, tokens)


def answer(finish_reason: str, **meta: object) -> dict[str, object]:
    """What SGLang answers, of one token."""
    about = {
        "finish_reason": {"type": finish_reason},
        "weight_version": "0",
        "output_token_logprobs": [[-1.0, 5, None]],
    }
    return {"output_ids": [5], "meta_info": {**about, **meta}}


@pytest.mark.parametrize("finish_reason", ["stop", "length", "abort"])
def test_an_engine_that_read_another_prompt_is_found_out(finish_reason):
    check_read(decode_generation(answer(finish_reason, prompt_tokens=7)), 7)
    with pytest.raises(PromptMismatch, match="read a prompt of 6 tokens where 7 were sent"):
        check_read(decode_generation(answer(finish_reason, prompt_tokens=6)), 7)


@pytest.mark.parametrize("meta", [{}, {"prompt_tokens": None}, {"prompt_tokens": 0}])
def test_an_engine_must_say_what_it_read_but_of_what_was_aborted_in_its_queue(meta):
    check_read(decode_generation(answer("abort", **meta)), 7)
    for finish_reason in ("stop", "length"):
        with pytest.raises(PromptMismatch, match="read a prompt whose length it does not say, where 7 were sent"):
            check_read(decode_generation(answer(finish_reason, **meta)), 7)
