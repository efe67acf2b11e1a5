"""Agent loops get what an environment's episode gets: budgets, commits, retries, and a resume from every commit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from agent_loops import CALLS, FAULTS, Drifting, down
from rollouts import ID, RecordingJournal, ScriptedEngines, halving, ids, play, replies

from stream_rl.buffer.records import SampleStart
from stream_rl.errors import LeaseLost, UserError
from stream_rl.producer.prompts import PromptRow
from stream_rl.sample import StopReason

PROMPT = ids("<|im_start|> user \n guess <|im_end|> \n <|im_start|> assistant \n")
LOWER = ids("\n <|im_start|> user \n lower <|im_end|> \n <|im_start|> assistant \n")


@pytest.fixture(autouse=True)
def clear() -> None:
    CALLS.clear()
    FAULTS.clear()
    Drifting.runs = 0


@pytest.fixture
def loop(rollout):
    """`loop("Guessing", **settings)`: the guessing game's prompts, played by this loop of agent_loops.py."""
    return lambda name, **settings: rollout(
        **{"rollout.agent": f"agent_loops:{name}", "environment.step_timeout": 5.0, **settings}
    )


def row(label: int, **metadata) -> PromptRow:
    return PromptRow("guess", label, metadata)


def calls(*kinds: str) -> list[str]:
    return [call for call in CALLS if call.startswith(kinds)]


class TestALoop:
    async def test_its_stream_is_prompt_answers_and_observations(self, loop):
        sample, journal = await play(loop("Guessing"), ScriptedEngines(replies("5 .", "2 .")), row=row(2))

        first, second = journal.turns
        assert sample.stop_reason is StopReason.MODEL_DONE
        assert first.observation.tolist() == LOWER
        assert second.observation.tolist() == []
        assert sample.response.tolist() == [*ids("5 <|im_end|>"), *LOWER, *ids("2 <|im_end|>")]
        assert [turn.reward for turn in journal.turns] == [0.25, 1.0]
        assert journal.outcome.reward == 1.25
        assert CALLS == ["once start", "act 5", "once 5", "act 2", "once 2", "end 2"]

    async def test_results_of_once_stand_in_the_turn_in_which_they_came(self, loop):
        _, journal = await play(loop("Guessing"), ScriptedEngines(replies("5 .", "2 .")), row=row(2))
        assert [turn.environment for turn in journal.turns] == [{"0": "once start", "1": "once 5"}, {"2": "once 2"}]

    async def test_a_rows_agent_name_goes_before_the_runs(self, loop):
        given = row(4, agent_name="single_turn_agent")
        sample, _ = await play(loop("Guessing"), ScriptedEngines(replies("5 .")), row=given)
        assert (sample.stop_reason, CALLS) == (StopReason.MODEL_DONE, [])
        given = row(4, agent_name="multi_turn_env")
        sample, _ = await play(loop("Guessing"), ScriptedEngines(halving), row=given)
        assert (sample.stop_reason, CALLS) == (StopReason.ENV_DONE, [])

    async def test_budgets_end_it_and_its_finally_runs(self, loop):
        sample, _ = await play(loop("Guessing", **{"rollout.max_turns": 2}), ScriptedEngines(replies("5 .", "5 .")))
        assert (sample.stop_reason, CALLS[-1]) == (StopReason.MAX_TURNS, "end 2")

    async def test_an_answer_that_was_cut_can_be_scored_and_is_the_last(self, loop):
        settings = {"rollout.max_turn_len": 3}
        engines = ScriptedEngines(replies("4 .", "3 3 3 3"))
        sample, _ = await play(loop("Guessing", **settings), engines, row=row(3))
        assert (sample.stop_reason, len(engines.requests)) == (StopReason.MAX_TURN_LEN, 2)
        assert CALLS[-1] == "end 2"

    async def test_parse_failures_are_counted_and_end_it(self, loop):
        settings = {"environment.max_parse_failures": 1}
        engines = ScriptedEngines(replies("guess .", "guess .", "2 ."))
        sample, _ = await play(loop("Guessing", **settings), engines, row=row(2))
        assert (sample.stop_reason, sample.parse_failures) == (StopReason.PARSE_FAILURES, 2)


async def test_a_loop_whose_lease_is_lost_is_cancelled(loop):
    class Fenced(RecordingJournal):
        async def commit(self, *given):
            await super().commit(*given)
            if len(self.turns) == 2:
                raise LeaseLost("a newer lease exists")

    engines = ScriptedEngines(replies("7 .", "5 .", "3 ."))
    with pytest.raises(LeaseLost):
        await play(loop("Guessing"), engines, Fenced(), row=row(3))
    assert (len(engines.requests), CALLS[-1]) == (2, "end 2")


class TestComingBack:
    SCRIPT = ("7 .", "2 .", "5 .", "3 .")

    @pytest.mark.parametrize("kept", [1, 2, 3, 4, 5, 6, 7])
    async def test_from_every_commit_it_goes_on_to_the_same_end(self, loop, kept):
        """Each turn takes two commits, since every first request is aborted after one token."""
        loaded = loop("Guessing")
        whole, journal = await play(loaded, self.engines(), row=row(3))
        assert len(journal.records) == 9
        once = calls("once")
        CALLS.clear()
        left = RecordingJournal()
        left.records = journal.records[: kept + 1]
        resumed, _ = await play(loaded, self.engines(kept), left, row=row(3))

        assert resumed.tokens.tolist() == whole.tokens.tolist()
        assert [turn.environment for turn in left.turns] == [turn.environment for turn in journal.turns]
        assert resumed.reward == whole.reward
        done = kept // 2
        assert calls("once") == once[done + 1 :] if done else once
        assert len(calls("act")) == 4, "what is acted out is acted out again"

    def engines(self, kept: int = 0) -> ScriptedEngines:
        script = list(self.SCRIPT)[kept // 2 :]
        whole = [[ID[text.split()[0]], ID["<|im_end|>"]] for text in script]
        parts = [part for reply in whole for part in ([reply[0], reply[1]], [reply[1]])][kept % 2 :]
        return ScriptedEngines(lambda _: parts.pop(0), cuts=[1, None][kept % 2 :] + [1, None] * 4)

    async def test_a_failure_of_the_world_is_retried_with_the_same_answer(self, loop):
        FAULTS.extend([down(), RuntimeError("no name")])
        engines = ScriptedEngines(replies("7 .", "3 ."))
        sample, _ = await play(loop("Guessing"), engines, row=row(3))

        assert (sample.stop_reason, sample.env_retries, len(engines.requests)) == (StopReason.MODEL_DONE, 2, 2)
        assert calls("act") == ["act 7", "act 7", "act 7", "act 3"]
        assert calls("once") == ["once start", "once 7", "once 3"], "never twice, although the loop ran three times"

    async def test_a_loop_with_a_state_takes_it_instead_of_running_again(self, loop):
        loaded = loop("Snapshot", **{"rollout.max_turns": 3})
        whole, journal = await play(loaded, ScriptedEngines(replies("1 .", "2 .", "3 .")))
        CALLS.clear()
        left = RecordingJournal()
        left.records = journal.records[:3]
        resumed, _ = await play(loaded, ScriptedEngines(replies("3 .")), left)

        assert resumed.tokens.tolist() == whole.tokens.tolist()
        assert CALLS == ["load 2", "answer 3 turn 3", "act"]
        start = journal.records[0]
        assert isinstance(start, SampleStart)
        assert ID["0"] in start.prompt_tokens.tolist(), "what it observes first belongs to the prompt"

    async def test_a_loop_that_is_not_deterministic_starts_again(self, loop):
        FAULTS.append(down())
        journal = RecordingJournal()
        sample, _ = await play(loop("Restarting"), ScriptedEngines(replies("7 .", "3 .")), journal, row=row(3))
        assert (journal.restarts, calls("act")) == (1, ["act 7", "act 3"])
        assert sample.response.tolist() == ids("3 <|im_end|>")

    async def test_a_loop_that_observes_something_else_fails_with_both_shown(self, loop):
        loaded = loop("Drifting")
        _, journal = await play(loaded, ScriptedEngines(replies("1 .", "2 .", "3 .", "4 .")))
        left = RecordingJournal()
        left.records = journal.records[:3]
        await play(loaded, ScriptedEngines(replies("3 .", "4 .")), left)
        assert left.failure is not None
        assert left.failure[0] is StopReason.ENV_FAILURE
        assert "turn 0" in left.failure[1]
        assert r"user\n1" in left.failure[1]
        assert r"user\n2" in left.failure[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Silent", "returned without a generation"),
        ("Careless", "must catch ActionError"),
        ("Stuck", "environment.step_timeout=0.05"),
        ("retokenising", "must begin with the 11 tokens of the conversation so far"),
    ],
)
async def test_what_a_loop_does_wrong_fails_the_sample_by_name(loop, name, message):
    seconds = 0.05 if name == "Stuck" else 5.0
    settings = {"environment.step_timeout": seconds, "environment.max_env_retries_per_turn": 0}
    _, journal = await play(loop(name, **settings), ScriptedEngines(replies("1 .", "2 .")))
    assert journal.failure is not None
    assert message in journal.failure[1]


class TestRolloutFunctions:
    async def test_a_function_reaches_the_model_by_the_context(self, loop):
        loaded = loop("generate", **{"environment.reward_key": "score"})
        sample, journal = await play(loaded, ScriptedEngines(replies("5 .", "2 .")), row=row(2))
        assert (sample.stop_reason, sample.reward) == (StopReason.MODEL_DONE, 1.0)
        assert journal.turns[0].observation.tolist() == LOWER

    async def test_a_function_of_slime_keeps_its_own_tokens(self, loop):
        loaded = loop("slime_generate")
        sample, journal = await play(loaded, ScriptedEngines(replies("5 .", "2 .")), row=row(2))
        assert (sample.stop_reason, sample.reward) == (StopReason.MODEL_DONE, 1.0)
        assert journal.turns[0].observation.tolist() == LOWER
        assert sample.prompt_tokens.tolist() == PROMPT

    async def test_it_goes_on_from_the_middle_of_an_answer(self, loop):
        loaded = loop("slime_generate")
        whole, journal = await play(loaded, ScriptedEngines(replies("5 .", "2 .", "."), cuts=[None, 1]), row=row(2))
        left = RecordingJournal()
        left.records = journal.records[:3]
        assert not left.turns[-1].complete
        resumed, _ = await play(loaded, ScriptedEngines(replies(".")), left, row=row(2))
        assert resumed.tokens.tolist() == whole.tokens.tolist()

    async def test_a_functions_own_scoring_is_replaced_by_a_reward_function(self, loop):
        settings = {"environment.reward_path": "scripted_env:reward", "environment.reward_key": "score"}
        sample, _ = await play(loop("generate", **settings), ScriptedEngines(replies("5 .", "2 .")), row=row(2))
        assert sample.reward == 2.0


OWN_MASK = [1, 1, *[0] * len(LOWER), 1, 1]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"remove_sample": True}, "has remove_sample, which would be ignored"),
        ({"multimodal_inputs": {"images": ["an image"]}}, "has images in multimodal_inputs"),
        ({"multimodal_train_inputs": {"pixel_values": [1.0]}}, "has images in multimodal_inputs"),
        ({"loss_mask": [0] * len(OWN_MASK)}, "has a loss_mask that would be ignored"),
        ({"loss_mask": [*OWN_MASK, 1]}, "has a loss_mask that would be ignored"),
        ({"reward": {"score": 1.0}}, r"environment\.reward_key=None is not in the sample's reward: name one of score"),
        ({"reward": "good"}, "the sample's reward must be a number"),
    ],
)
async def test_what_would_be_ignored_of_a_returned_sample_is_refused_by_name(loop, returned, message):
    loaded = loop("returning", **{"environment.args": {"returned": returned}})
    with pytest.raises(UserError, match=message):
        await play(loaded, ScriptedEngines(replies("5 .", "2 .")), row=row(2))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"text": "guess"}, "post needs input_ids"),
        ({"input_ids": [1], "image_data": ["iVBO"]}, "cannot send image_data"),
        ({"input_ids": [1], "sampling_params": {"temperature": 0.5}}, r"asks for temperature=0\.5, .* counts on 1\.0"),
    ],
)
async def test_a_request_that_cannot_be_made_is_refused_by_name(loop, payload, message):
    loaded = loop("posting", **{"environment.args": {"payload": payload}})
    with pytest.raises(UserError, match=message):
        await play(loaded, ScriptedEngines(replies("5 .")), row=row(2))


@pytest.mark.parametrize(
    "returned", [{"loss_mask": OWN_MASK}, {"loss_mask": [*OWN_MASK, 0]}, {"multimodal_inputs": {"images": None}}]
)
async def test_what_says_the_same_as_is_trained_is_taken(loop, returned):
    loaded = loop("returning", **{"environment.args": {"returned": returned}})
    sample, _ = await play(loaded, ScriptedEngines(replies("5 .", "2 .")), row=row(2))
    assert (sample.stop_reason, sample.reward) == (StopReason.MODEL_DONE, 1.0)
    assert sample.loss_mask.tolist() == OWN_MASK


async def test_the_pages_example_is_a_loop(rollout, tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "agents.md"
    found = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "second_thought_of_the_docs.py").write_text(found[1])
    monkeypatch.syspath_prepend(tmp_path)
    loaded = rollout(**{"rollout.agent": "second_thought_of_the_docs:SecondThought"})
    sample, _ = await play(loaded, ScriptedEngines(replies("5 .", "2 .")), row=row(2))
    assert (sample.stop_reason, sample.reward, sample.next_turn) == (StopReason.MODEL_DONE, 1.0, 2)
