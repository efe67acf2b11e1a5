"""The turn loop over a scripted engine: token truth, stop reasons, budgets, interruption."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollouts import END, RecordingJournal, ScriptedEngines, halving, ids, play, replies

from stream_rl.buffer.records import SampleStart
from stream_rl.errors import EngineRejected, EngineUnavailable
from stream_rl.producer.prompts import PromptRow
from stream_rl.sample import Sample, Status, StopReason, WeightVersion

PROMPT = ids("<|im_start|> user \n guess <|im_end|> \n <|im_start|> assistant \n")
HIGHER = ids("\n <|im_start|> user \n higher <|im_end|> \n <|im_start|> assistant \n")


def target(number: int) -> PromptRow:
    """A game whose number is known."""
    return PromptRow("guess", number)


class TestTokens:
    async def test_the_stream_is_prompt_then_actions_and_observations_and_nothing_else(self, rollout):
        sample, _ = await play(rollout(), ScriptedEngines(halving), row=target(5))

        response = [*ids("4 <|im_end|>"), *HIGHER, *ids("6 <|im_end|>")]
        assert sample.prompt_tokens.tolist() == PROMPT
        assert sample.response[: len(response)].tolist() == response
        assert sample.response[-2:].tolist() == ids("5 <|im_end|>")

    async def test_each_turn_is_fed_exactly_what_was_recorded_before_it(self, rollout):
        engines = ScriptedEngines(halving)
        sample, _ = await play(rollout(), engines, row=target(8))

        for turn, (given_ids, _) in enumerate(engines.requests):
            before = sum(record.length for record in sample.turns[:turn])
            assert given_ids == sample.tokens[: len(PROMPT) + before].tolist()

    async def test_generated_tokens_carry_loss_and_their_log_probs_and_observations_neither(self, rollout):
        sample, _ = await play(rollout(), ScriptedEngines(halving), row=target(5))

        assert sample.loss_mask[: 2 + len(HIGHER) + 2].tolist() == [1, 1, *[0] * len(HIGHER), 1, 1]
        generated = sample.loss_mask == 1
        np.testing.assert_allclose(sample.rollout_log_probs[generated], -sample.response[generated] / 100)
        assert not sample.rollout_log_probs[~generated].any()
        assert set(sample.version_steps[~generated].tolist()) == {-1}

    async def test_the_newline_after_the_end_token_belongs_to_the_observation(self, rollout):
        sample, _ = await play(rollout(), ScriptedEngines(halving), row=target(5))

        assert sample.turns[0].generated[-1] == END
        assert sample.turns[0].observation[0] == ids("\n")[0]

    async def test_a_stop_token_in_the_last_place_of_the_budget_is_a_stop(self, rollout):
        """The engine calls it a length stop; the turn is whole all the same."""
        sample, journal = await play(rollout(**{"rollout.max_turn_len": 2}), ScriptedEngines(halving), row=target(4))

        assert sample.stop_reason is StopReason.ENV_DONE
        assert journal.turns[0].finish_reason == "stop"

    async def test_the_start_record_holds_what_a_resume_needs(self, rollout):
        _, journal = await play(rollout(), ScriptedEngines(halving), row=PromptRow("guess", 4, {"row": 3}))

        start = journal.records[0]
        assert isinstance(start, SampleStart)
        assert (start.prompt, start.label, start.metadata, start.temperature) == ("guess", 4, {"row": 3}, 1.0)
        assert start.prompt_tokens.tolist() == PROMPT


class TestStopReasons:
    async def test_the_environments_done_completes_the_sample_and_its_last_observation_is_left_out(self, rollout):
        sample, journal = await play(rollout(), ScriptedEngines(halving), row=target(4))

        assert (sample.status, sample.stop_reason) == (Status.COMPLETED, StopReason.ENV_DONE)
        assert journal.outcome is not None
        assert journal.outcome.reward == sample.reward == 1.0
        assert len(journal.turns[-1].observation) == 0

    async def test_running_out_of_turns_is_truncated_not_completed(self, rollout):
        sample, _ = await play(rollout(**{"rollout.max_turns": 2}), ScriptedEngines(halving), row=target(8))

        assert (sample.status, sample.stop_reason) == (Status.TRUNCATED, StopReason.MAX_TURNS)
        assert sample.reward == pytest.approx(0.1)
        assert len(sample.turns[-1].observation) == 0

    async def test_a_turn_cut_by_its_length_ends_the_episode_with_the_reward_it_has(self, rollout):
        engines = ScriptedEngines(replies("4 .", "3 3 3 3"))
        sample, _ = await play(rollout(**{"rollout.max_turn_len": 3}), engines, row=target(5))

        assert (sample.status, sample.stop_reason) == (Status.TRUNCATED, StopReason.MAX_TURN_LEN)
        assert sample.reward == pytest.approx(0.05)
        assert sample.turns[-1].generated.tolist() == ids("3 3 3")

    async def test_a_cut_turn_that_reads_like_an_action_is_no_action(self, rollout):
        engines = ScriptedEngines(replies("5 <pad> <pad>"))
        sample, _ = await play(rollout(**{"rollout.max_turn_len": 2}), engines, row=target(5))

        assert (sample.stop_reason, sample.reward) == (StopReason.MAX_TURN_LEN, 0.0)

    async def test_a_mistake_is_answered_and_takes_a_turn(self, rollout):
        engines = ScriptedEngines(replies("higher .", "5 ."))
        sample, journal = await play(rollout(), engines, row=target(5))

        assert sample.turns[0].observation.tolist() == [ids("invalid")[0] if t == HIGHER[4] else t for t in HIGHER]
        assert sample.reward == pytest.approx(1.0)
        assert [turn.parse_failures for turn in journal.turns] == [1, 0]

    async def test_more_mistakes_than_are_forgiven_end_the_episode(self, rollout):
        engines = ScriptedEngines(replies("guess .", "1 .", "guess ."))
        sample, _ = await play(rollout(**{"environment.max_parse_failures": 1}), engines, row=target(5))

        assert (sample.status, sample.stop_reason) == (Status.TRUNCATED, StopReason.PARSE_FAILURES)
        assert sample.reward == pytest.approx(0.1 / 3)

    async def test_the_deadline_counts_active_seconds_over_resumes(self, rollout):
        loaded = rollout(**{"rollout.deadline": 100.0})
        _, journal = await play(loaded, ScriptedEngines(halving, cuts=[1, None]), row=target(4))
        spent = replace_active(journal, 101.0)

        sample, journal = await play(loaded, ScriptedEngines(halving), spent, row=target(4))

        assert (sample.status, sample.stop_reason) == (Status.TRUNCATED, StopReason.DEADLINE)
        assert journal.outcome is not None
        assert sample.response_length == 1

    async def test_an_episode_without_a_token_by_its_deadline_failed(self, rollout):
        sample, journal = await play(rollout(**{"rollout.deadline": 0.02}), HangingEngines(), row=target(4))

        assert sample.status is Status.FAILED
        assert journal.failure is not None
        assert journal.failure[0] is StopReason.ENGINE_FAILURE
        assert "rollout.deadline=0.02" in journal.failure[1]

    @pytest.mark.parametrize("error", [EngineUnavailable("no engine"), EngineRejected("too long")])
    async def test_a_failed_generation_fails_its_sample_and_raises_nothing(self, rollout, error):
        sample, journal = await play(rollout(), FailingEngines(error), row=target(4))

        assert sample.status is Status.FAILED
        assert sample.reward is None
        assert journal.failure == (StopReason.ENGINE_FAILURE, str(error))
        assert journal.outcome is None


class TestBudgets:
    async def test_the_response_cap_counts_observations_and_not_the_prompt(self, rollout):
        length = 2 + len(HIGHER)
        settings = {"rollout.max_turn_len": 2, "rollout.max_response_len": length + 2}
        sample, _ = await play(rollout(**settings), ScriptedEngines(halving), row=target(8))

        assert sample.stop_reason is StopReason.MAX_RESPONSE_LEN
        assert sample.response_length == length + 2

    async def test_an_observation_that_leaves_no_room_to_answer_is_left_out(self, rollout):
        settings = {"rollout.max_turn_len": 2, "rollout.max_response_len": 2 + len(HIGHER)}
        sample, _ = await play(rollout(**settings), ScriptedEngines(halving), row=target(8))

        assert (sample.status, sample.stop_reason) == (Status.TRUNCATED, StopReason.MAX_RESPONSE_LEN)
        assert sample.response.tolist() == ids("4 <|im_end|>")

    async def test_the_context_cap_counts_the_prompt(self, rollout):
        settings = {"rollout.max_turn_len": 2, "rollout.max_context_len": len(PROMPT) + 2 + len(HIGHER) + 1}
        engines = ScriptedEngines(halving)
        sample, _ = await play(rollout(**settings), engines, row=target(8))

        assert sample.stop_reason is StopReason.MAX_CONTEXT_LEN
        assert len(sample.tokens) == settings["rollout.max_context_len"]
        assert engines.requests[-1][1].max_new_tokens == 1

    async def test_a_continued_turn_is_asked_for_what_is_left_of_its_budget(self, rollout):
        engines = ScriptedEngines(replies("1 1 1 1 1 1", "1 1 1 1 1 1", "1 1 1 1 1 1"), cuts=[2, 3, None])
        sample, _ = await play(rollout(**{"rollout.max_turn_len": 6}), engines, row=target(5))

        assert [sampling.max_new_tokens for _, sampling in engines.requests] == [6, 4, 1]
        assert sample.stop_reason is StopReason.MAX_TURN_LEN
        assert len(sample.response) == 6


class TestInterruption:
    async def test_an_interrupted_turn_goes_on_where_it_was_with_a_new_version_span(self, rollout):
        engines = ScriptedEngines(continuing(halving), cuts=[1, None])
        journal = RecordingJournal()
        bump_version_after_first_commit(journal, engines)
        sample, _ = await play(rollout(), engines, journal, row=target(4))

        assert [turn.complete for turn in journal.turns] == [False, True]
        assert [turn.finish_reason for turn in journal.turns] == ["abort", "stop"]
        assert [str(span.version) for span in sample.weight_versions] == ["0", "1"]
        assert sample.response.tolist() == ids("4 <|im_end|>")
        assert sample.next_turn == 1

    async def test_a_request_aborted_in_the_queue_is_sent_again_and_leaves_no_record(self, rollout):
        _, journal = await play(rollout(), ScriptedEngines(halving, cuts=[0, 0, None]), row=target(4))

        assert len(journal.turns) == 1

    async def test_a_turn_cut_right_after_its_stop_token_is_whole(self, rollout):
        engines = ScriptedEngines(replies("4 . 1 1"), cuts=[2])
        sample, journal = await play(rollout(), engines, row=target(4))

        assert len(engines.requests) == 1
        assert journal.turns[0].complete
        assert sample.stop_reason is StopReason.ENV_DONE

    async def test_a_continued_turn_keeps_its_seed_and_the_next_turn_has_another(self, rollout):
        engines = ScriptedEngines(continuing(halving), cuts=[1, None])
        await play(rollout(), engines, row=target(6))

        seeds = [sampling.sampling_seed for _, sampling in engines.requests]
        assert seeds[0] == seeds[1] != seeds[2]

    async def test_a_long_turn_is_committed_in_chunks_within_its_budget(self, rollout):
        engines = ScriptedEngines(replies("1 1", "1 1", "1"))
        journal = RecordingJournal()
        bump_version_after_first_commit(journal, engines)
        limits = {"rollout.max_turn_len": 5, "rollout.commit_every_tokens": 2}
        sample, journal = await play(rollout(**limits), engines, journal, row=target(5))

        assert [sampling.max_new_tokens for _, sampling in engines.requests] == [2, 2, 1]
        assert [turn.finish_reason for turn in journal.turns] == ["chunk", "chunk", "length"]
        assert [turn.complete for turn in journal.turns] == [False, False, True]
        assert [tuple(span) for span in sample.weight_versions] == [(0, 2, (0, 0)), (2, 5, (1, 0))]
        assert sample.stop_reason is StopReason.MAX_TURN_LEN

    async def test_a_turn_that_stops_where_its_chunk_ends_is_whole(self, rollout):
        engines = ScriptedEngines(halving)
        sample, journal = await play(rollout(**{"rollout.commit_every_tokens": 2}), engines, row=target(4))

        assert (len(engines.requests), len(journal.turns)) == (1, 1)
        assert sample.stop_reason is StopReason.ENV_DONE

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        number=st.integers(1, 8),
        cuts=st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=12),
        chunk=st.integers(1, 3),
    )
    async def test_wherever_it_is_cut_the_trajectory_is_the_same(self, rollout, number, cuts, chunk):
        whole, _ = await play(rollout(), ScriptedEngines(continuing(halving)), row=target(number))
        loaded = rollout(**{"rollout.commit_every_tokens": chunk})

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("stream_rl.producer.turn_loop.ABORT_PAUSE", 0.0)
            cut, _ = await play(loaded, ScriptedEngines(continuing(halving), cuts), row=target(number))

        same_trajectory(whole, cut)


def same_trajectory(left: Sample, right: Sample) -> None:
    """Equal in every token, mask, log-prob and version, and in the end."""
    assert left.tokens.tolist() == right.tokens.tolist()
    assert left.loss_mask.tolist() == right.loss_mask.tolist()
    assert left.rollout_log_probs.tolist() == right.rollout_log_probs.tolist()
    assert left.weight_versions == right.weight_versions
    assert (left.reward, left.stop_reason) == (right.reward, right.stop_reason)


def continuing(policy):
    """A policy of whole replies, for an engine that may be asked for the rest of one."""

    def rest(given_ids):
        start = len(given_ids)
        while given_ids[start - 3 : start] != ids("<|im_start|> assistant \n"):
            start -= 1
        return policy(given_ids[:start])[len(given_ids) - start :]

    return rest


def bump_version_after_first_commit(journal: RecordingJournal, engines: ScriptedEngines) -> None:
    """The engine has new weights once the first record is committed."""
    commit = journal.commit

    async def commit_and_bump(*given):
        await commit(*given)
        engines.version = WeightVersion(1)

    journal.commit = commit_and_bump  # type: ignore[method-assign]


def replace_active(journal: RecordingJournal, seconds: float) -> RecordingJournal:
    """The journal's first record alone, as if it had taken so long."""
    cut = RecordingJournal()
    cut.records = [journal.records[0], replace(journal.turns[0], active_seconds=seconds)]
    return cut


class HangingEngines:
    """Never answers."""

    async def generate(self, *_, **__):
        await asyncio.sleep(math.inf)


class FailingEngines:
    """Answers with an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def generate(self, *_, **__):
        raise self.error
