"""Caps go on where they were: whoever resumes a sample asks for what is left of them, never for the whole again."""

from __future__ import annotations

import pytest
from rollouts import RecordingJournal, ScriptedEngines, halving, ids, play, replies

from stream_rl.producer.prompts import PromptRow
from stream_rl.sample import StopReason

PROMPT = ids("<|im_start|> user \n guess <|im_end|> \n <|im_start|> assistant \n")
FIRST_TURN = ids("4 <|im_end|> \n <|im_start|> user \n higher <|im_end|> \n <|im_start|> assistant \n")
EIGHT = PromptRow("guess", 8)


def cut_after(journal: RecordingJournal, records: int) -> RecordingJournal:
    """What a process that died then has left."""
    left = RecordingJournal()
    left.records = journal.records[:records]
    return left


@pytest.mark.parametrize(
    ("cap", "value", "left"),
    [("max_response_len", len(FIRST_TURN) + 3, 3), ("max_context_len", len(PROMPT) + len(FIRST_TURN) + 1, 1)],
)
async def test_a_resumed_sample_asks_for_what_is_left_of_the_samples_caps(rollout, cap, value, left):
    loaded = rollout(**{f"rollout.{cap}": value})
    _, journal = await play(rollout(), ScriptedEngines(halving), row=EIGHT)
    engines = ScriptedEngines(lambda _: ids("6 6 6 6 6 6 6 6"))

    sample, _ = await play(loaded, engines, cut_after(journal, 2), row=EIGHT)

    assert [sampling.max_new_tokens for _, sampling in engines.requests] == [left]
    assert sample.stop_reason is StopReason(cap)
    assert sample.response_length == len(FIRST_TURN) + left


async def test_a_resumed_turn_asks_for_what_is_left_of_its_own_cap(rollout):
    loaded = rollout(**{"rollout.max_turn_len": 6})
    _, journal = await play(loaded, ScriptedEngines(replies("1 1 1 1 1 1", "1 1 1 1"), cuts=[2, None]), row=EIGHT)
    engines = ScriptedEngines(replies("1 1 1 1 1 1 1 1"))

    sample, _ = await play(loaded, engines, cut_after(journal, 2), row=EIGHT)

    assert [sampling.max_new_tokens for _, sampling in engines.requests] == [4]
    assert (sample.stop_reason, sample.response_length) == (StopReason.MAX_TURN_LEN, 6)
