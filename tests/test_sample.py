"""Invariant I1 after every append, and the nouns' text forms."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.sample import (
    OBSERVATION_STEP,
    Sample,
    SampleId,
    Status,
    StopReason,
    Turn,
    VersionSpan,
    WeightVersion,
)

versions = st.builds(WeightVersion, st.integers(0, 99), st.integers(0, 3))


@st.composite
def turns(draw: st.DrawFn) -> list[Turn]:
    """Records in an order that a turn loop can produce: a cut record is followed by more of the same interaction."""
    records, index = [], 0
    for _ in range(draw(st.integers(0, 6))):
        complete = draw(st.booleans())
        records.append(record(draw, index, complete))
        index += complete
    return records


def record(draw: st.DrawFn, index: int, complete: bool) -> Turn:
    spans, at = [], 0
    for length in draw(st.lists(st.integers(1, 5), max_size=3)):
        spans.append(VersionSpan(at, at + length, draw(versions)))
        at += length
    observation = draw(st.lists(st.integers(0, 999), max_size=4)) if complete else []
    return Turn(
        index=index,
        generated=np.arange(at, dtype=np.int32),
        log_probs=np.full(at, -0.5, np.float32),
        observation=np.array(observation, np.int32),
        spans=tuple(spans),
        complete=complete,
    )


def sample() -> Sample:
    return Sample(3, 1, "prompt", np.array([7, 8], np.int32))


def turn(index: int, generated: int = 1, version: int = 0, observation: int = 0, complete: bool = True) -> Turn:
    return Turn(
        index,
        np.ones(generated, np.int32),
        np.full(generated, -1.0, np.float32),
        np.full(observation, 9, np.int32),
        (VersionSpan(0, generated, WeightVersion(version)),),
        complete=complete,
    )


@given(turns())
def test_lengths_agree_after_every_append(records: list[Turn]) -> None:
    grown = sample()
    for each in records:
        grown.append(each)
        grown.check()
        assert grown.response_length == sum(known.length for known in grown.turns)
        assert len(grown.tokens) == 2 + grown.response_length
        assert len(grown.version_steps) == grown.response_length
        assert int(grown.loss_mask.sum()) == sum(len(known.generated) for known in grown.turns)


@given(turns())
def test_observations_carry_nothing(records: list[Turn]) -> None:
    grown = sample()
    for each in records:
        grown.append(each)
    observed = grown.loss_mask == 0
    assert np.all(grown.rollout_log_probs[observed] == 0.0)
    assert np.all(grown.version_steps[observed] == OBSERVATION_STEP)
    assert np.all(grown.version_steps[~observed] >= 0)


@given(turns())
def test_neighbouring_spans_differ(records: list[Turn]) -> None:
    grown = sample()
    for each in records:
        grown.append(each)
    spans = grown.weight_versions
    assert all(a.version != b.version for a, b in pairwise(spans))
    assert all(span.end > span.start for span in spans)


def test_an_empty_sample_has_empty_arrays() -> None:
    fresh = sample()
    assert fresh.tokens.tolist() == [7, 8]
    for array, dtype in (
        (fresh.response, np.int32),
        (fresh.loss_mask, np.uint8),
        (fresh.rollout_log_probs, np.float32),
    ):
        assert len(array) == 0
        assert array.dtype == dtype


def test_tokens_are_in_order_with_their_masks() -> None:
    grown = sample()
    grown.append(turn(0, generated=2, version=4, observation=1))
    grown.append(turn(1, generated=1, version=5))
    assert grown.tokens.tolist() == [7, 8, 1, 1, 9, 1]
    assert grown.loss_mask.tolist() == [1, 1, 0, 1]
    assert grown.version_steps.tolist() == [4, 4, -1, 5]


def test_a_cut_turn_goes_on_under_its_own_index() -> None:
    grown = sample()
    grown.append(turn(0, version=1, complete=False))
    assert grown.next_turn == 0
    grown.append(turn(0, version=2))
    assert grown.next_turn == 1
    assert [span.version.step for span in grown.weight_versions] == [1, 2]


@given(turns())
def test_totals_and_the_open_turn_follow_every_append(records: list[Turn]) -> None:
    grown = sample()
    for number, record in enumerate(records, 1):
        grown.append(replace(record, active_seconds=0.5, env_retries=number, parse_failures=1))
        assert grown.active_seconds == 0.5 * number
        assert grown.env_retries == sum(turn.env_retries for turn in grown.turns)
        assert grown.parse_failures == number
        assert grown.open_turn == [turn for turn in grown.turns if turn.index == grown.next_turn]

    assert len(grown.tokens) == len(grown.prompt_tokens) + grown.response_length
    grown.restart()
    assert grown.tokens.tolist() == grown.prompt_tokens.tolist()
    assert (grown.turns, grown.response_length, grown.active_seconds) == ([], 0, 0.0)
    assert (grown.env_retries, grown.parse_failures, grown.next_turn) == (0, 0, 0)


@pytest.mark.parametrize("index", [0, 2])
def test_only_the_next_turn_is_taken(index: int) -> None:
    grown = sample()
    grown.append(turn(0))
    with pytest.raises(ValueError, match=f"turn {index} appended where turn 1 is next"):
        grown.append(turn(index))


def test_a_turn_needs_a_log_prob_for_every_token() -> None:
    with pytest.raises(ValueError, match="2 generated tokens but 1 log-probs"):
        Turn(0, np.ones(2, np.int32), np.ones(1, np.float32), np.zeros(0, np.int32), ())


def test_a_turns_spans_cover_it() -> None:
    with pytest.raises(ValueError, match="spans cover 1 of 2"):
        Turn(
            0,
            np.ones(2, np.int32),
            np.ones(2, np.float32),
            np.zeros(0, np.int32),
            (VersionSpan(0, 1, WeightVersion(0)),),
        )


@given(versions)
def test_a_version_comes_back_from_its_text(version: WeightVersion) -> None:
    assert WeightVersion.parse(str(version)) == version


def test_an_incarnation_shows_only_after_a_restart() -> None:
    assert str(WeightVersion(40)) == "40"
    assert str(WeightVersion(40, 1)) == "40.1"


@pytest.mark.parametrize("text", ["default", "", "1.x"])
def test_other_texts_are_no_versions(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        WeightVersion.parse(text)


@given(st.builds(SampleId, st.integers(0, 10**6), st.integers(0, 99), st.integers(0, 9)))
def test_a_sample_id_comes_back_from_its_text(sample_id: SampleId) -> None:
    assert SampleId.parse(str(sample_id)) == sample_id


def test_a_sample_knows_its_id() -> None:
    assert str(sample().sample_id) == "3-1"
    assert str(Sample(3, 1, "", np.zeros(0, np.int32), attempt=2).sample_id) == "3-1-2"


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (StopReason.ENV_DONE, Status.COMPLETED),
        (StopReason.MODEL_DONE, Status.COMPLETED),
        (StopReason.MAX_TURNS, Status.TRUNCATED),
        (StopReason.PARSE_FAILURES, Status.TRUNCATED),
        (StopReason.DEADLINE, Status.TRUNCATED),
        (StopReason.ENV_FAILURE, Status.FAILED),
        (StopReason.ENGINE_FAILURE, Status.FAILED),
    ],
)
def test_a_reason_gives_its_status(reason: StopReason, status: Status) -> None:
    assert reason.status is status
