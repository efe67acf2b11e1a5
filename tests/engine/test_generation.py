"""The pure half of the client: what is asked and what is understood."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.engine.generation import SamplingParams, check_given, check_ids, decode_generation, encode_request
from stream_rl.errors import EngineError, EngineRejected, EngineUnavailable
from stream_rl.sample import VersionSpan, WeightVersion

VERSIONS = st.builds(WeightVersion, st.integers(0, 1000), st.integers(0, 3))
RUNS = st.lists(st.tuples(st.integers(1, 20), VERSIONS), max_size=5)


def answer(runs: list[tuple[int, WeightVersion]], **meta: Any) -> dict[str, Any]:
    """A `/generate` answer with these runs of (length, version)."""
    ends = np.cumsum([0, *(length for length, _ in runs)]).tolist()
    spans = [
        {"version": str(version), "start": start, "end": end}
        for (start, end), (_, version) in zip(pairwise(ends), runs, strict=True)
    ]
    return {
        "output_ids": list(range(ends[-1])),
        "meta_info": {
            "output_token_logprobs": [[-0.25, token, None] for token in range(ends[-1])],
            "weight_versions": spans,
            "weight_version": spans[-1]["version"] if spans else "0",
            "finish_reason": {"type": "stop"},
            **meta,
        },
    }


@given(RUNS)
def test_tokens_log_probs_and_spans_have_one_length(runs: list[tuple[int, WeightVersion]]) -> None:
    generation = decode_generation(answer(runs))
    assert generation.tokens.dtype == np.int32
    assert generation.log_probs.dtype == np.float32
    assert len(generation.tokens) == len(generation.log_probs) == sum(length for length, _ in runs)
    assert [(span.end - span.start, span.version) for span in generation.spans] == runs


def test_a_request_aborted_in_the_queue_is_empty() -> None:
    generation = decode_generation(answer([], finish_reason={"type": "abort", "message": "in queue"}))
    assert (len(generation.tokens), generation.spans, generation.prompt_tokens) == (0, (), 0)
    assert generation.finish_reason == "abort"


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_answer_without_a_token_is_none(reason: str) -> None:
    with pytest.raises(EngineError, match=f"ended with '{reason}' and gave no token"):
        check_given(decode_generation(answer([], finish_reason={"type": reason})), 4)


def test_no_more_tokens_are_taken_than_were_asked_for() -> None:
    generation = decode_generation(answer([(5, WeightVersion(3))]))
    check_given(generation, 5)
    with pytest.raises(EngineError, match="gave 5 tokens where 4 were asked for"):
        check_given(generation, 4)


def test_times_and_counts_are_read() -> None:
    generation = decode_generation(
        answer([(2, WeightVersion(3))], prompt_tokens=9, cached_tokens=8, queue_time=0.25, e2e_latency=1.5)
    )
    assert (generation.prompt_tokens, generation.cached_tokens) == (9, 8)
    assert (generation.queue_seconds, generation.engine_seconds) == (0.25, 1.5)


def test_without_spans_the_one_version_is_everybodys() -> None:
    generation = decode_generation(answer([(3, WeightVersion(7, 1))], weight_versions=None))
    assert generation.spans == (VersionSpan(0, 3, WeightVersion(7, 1)),)


def test_an_engine_without_a_version_counts_as_one_that_does_not_serve() -> None:
    spans = [{"version": "default", "start": 0, "end": 2}]
    with pytest.raises(EngineUnavailable, match="publish one first"):
        decode_generation(answer([(2, WeightVersion(0))], weight_versions=spans, weight_version="default"))


@pytest.mark.parametrize(
    "meta",
    [
        {"output_token_logprobs": [[-0.25, 0, None]]},
        {"output_token_logprobs": [[-0.25, 0, None], [None, 1, None]]},
        {"weight_versions": [{"version": "1", "start": 0, "end": 3}]},
        {"weight_versions": [{"version": "1", "start": 1, "end": 2}]},
        {"weight_versions": [{"version": "1", "start": 0, "end": 0}, {"version": "2", "start": 1, "end": 2}]},
        {"weight_versions": [{"start": 0, "end": 2}]},
        {"output_token_logprobs": [None, None]},
        {"finish_reason": None},
        {"finish_reason": {"type": "error"}},
    ],
)
def test_an_answer_that_contradicts_itself_is_an_error(meta: dict[str, Any]) -> None:
    with pytest.raises(EngineError):
        decode_generation(answer([(2, WeightVersion(0))], **meta))


@pytest.mark.parametrize("missing", ["weight_version", "finish_reason"])
def test_an_answer_of_another_form_is_an_error_of_the_engine_alone(missing: str) -> None:
    """What has no name would end the producer, and with it every other sample."""
    given = answer([(2, WeightVersion(0))])
    del given["meta_info"][missing]
    with pytest.raises(EngineError, match=f"another form: KeyError: '{missing}'"):
        decode_generation(given)


@pytest.mark.parametrize("given", [None, 5, [answer([(2, WeightVersion(0))])], {"detail": "moved"}])
def test_what_is_no_engine_does_not_serve(given: Any) -> None:
    with pytest.raises(EngineUnavailable, match="no engine"):
        decode_generation(given)


@given(st.lists(st.integers(-5, 40), min_size=1))
def test_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    tokens = np.array(ids, np.int32)
    if all(0 <= token < 32 for token in ids):
        check_ids(tokens, 32)
        return
    first = next(at for at, token in enumerate(ids) if not 0 <= token < 32)
    with pytest.raises(EngineRejected, match=f"token {ids[first]} at {first} "):
        check_ids(tokens, 32)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(EngineRejected, match="no tokens"):
        check_ids(np.zeros(0, np.int32), 32)


def test_nothing_that_truncates_the_distribution_is_sent() -> None:
    sampling = SamplingParams(8, temperature=0.7, stop_token_ids=(4,), sampling_seed=11)
    body = encode_request(np.arange(3, dtype=np.int32), sampling, rid="r", extra_key="run.3")
    assert body["sampling_params"] == {
        "max_new_tokens": 8, "temperature": 0.7, "top_p": 1.0, "top_k": -1, "stop_token_ids": (4,), "sampling_seed": 11,
    }  # fmt: skip
    assert (body["rid"], body["extra_key"], body["return_logprob"]) == ("r", "run.3", True)


def test_what_is_not_asked_for_is_not_sent() -> None:
    body = encode_request(np.arange(3, dtype=np.int32), SamplingParams(8, temperature=0.0), rid="r", extra_key=None)
    assert "extra_key" not in body
    assert set(body["sampling_params"]) == {"max_new_tokens", "temperature", "top_p", "top_k"}
    assert body["sampling_params"]["top_k"] == 1


def test_senseless_sampling_is_a_value_error() -> None:
    for wrong in ({"max_new_tokens": 0}, {"max_new_tokens": 1, "temperature": -1.0}):
        with pytest.raises(ValueError, match=r"max_new_tokens=0|temperature=-1"):
            SamplingParams(**wrong)  # type: ignore[arg-type]
