"""Environments that fail and come back: retries under budgets, the three resume classes, named ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest
from rollouts import ID, RecordingJournal, ScriptedEngines, ids, play, replies
from scripted_env import World

from stream_rl.errors import ActionError, EnvFatalError, EnvInfraError
from stream_rl.sample import Status, StopReason

FOUR = ("1 .", "2 .", "3 .", "4 .")
KINDS = ("snapshot", "replay", "restart")


@pytest.fixture(autouse=True)
def _fresh_world(monkeypatch):
    World.clear()
    monkeypatch.setattr("stream_rl.producer.retries.FIRST_PAUSE", 0.0)


@pytest.fixture
def scripted(rollout):
    """`scripted(kind)`: a run of the scripted environment, which ends after 4 turns."""
    return lambda kind, **more: rollout(
        **{"environment.path": "scripted_env", "environment.args": {"kind": kind}, **more}
    )


def observations(sample) -> list[int]:
    """The number that each observation shows."""
    return [int(turn.observation[4]) - ID["0"] for turn in sample.turns if len(turn.observation)]


async def test_the_first_observation_of_reset_is_shown(scripted):
    sample, _ = await play(scripted("replay"), ScriptedEngines(replies(*FOUR)))

    assert ids("0")[0] in sample.prompt_tokens.tolist()
    assert observations(sample) == [1, 2, 3]
    assert (sample.stop_reason, sample.reward) == (StopReason.MAX_TURNS, 1.0)


class TestRetries:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("fault", [EnvInfraError("down"), RuntimeError("a bug"), OSError("reset by peer")])
    async def test_a_failure_of_the_world_is_retried_from_where_the_episode_was(self, scripted, kind, fault):
        World.faults["step"] = [None, fault]
        script = FOUR if kind != "restart" else (*FOUR[:2], *FOUR)
        sample, journal = await play(scripted(kind), ScriptedEngines(replies(*script)))

        assert observations(sample) == [1, 2, 3]
        assert sample.reward == 1.0
        assert journal.restarts == (kind == "restart")
        if kind != "restart":
            assert [turn.env_retries for turn in journal.turns] == [0, 1, 0, 0]

    async def test_a_spent_turn_budget_fails_the_sample_and_is_never_scored(self, scripted):
        World.faults["step"] = [EnvInfraError("down")] * 3
        loaded = scripted("snapshot", **{"environment.max_env_retries_per_turn": 2})
        sample, journal = await play(loaded, ScriptedEngines(replies(*FOUR)))

        assert (sample.status, sample.reward, journal.outcome) == (Status.FAILED, None, None)
        assert journal.failure is not None
        assert journal.failure[0] is StopReason.ENV_FAILURE
        assert "max_env_retries_per_turn=2 is spent: down" in journal.failure[1]

    async def test_the_samples_budget_counts_over_turns_and_over_a_resume(self, scripted):
        loaded = scripted("snapshot", **{"environment.max_env_retries_per_sample": 2})
        World.faults["step"] = [EnvInfraError("a"), None, EnvInfraError("b"), None]
        whole, journal = await play(loaded, ScriptedEngines(replies(*FOUR)))
        assert whole.status is Status.TRUNCATED

        cut = RecordingJournal()
        cut.records = journal.records[:3]
        World.faults["step"] = [EnvInfraError("c")]
        sample, cut = await play(loaded, ScriptedEngines(replies(*FOUR)), cut)

        assert sample.status is Status.FAILED
        assert "max_env_retries_per_sample=2" in cut.failure[1]

    async def test_a_fatal_error_is_not_retried(self, scripted):
        World.faults["step"] = [EnvFatalError("the world ended")]
        _, journal = await play(scripted("snapshot"), ScriptedEngines(replies(*FOUR)))

        assert journal.failure == (StopReason.ENV_FAILURE, "the world ended")
        assert World.calls.count("step") == 1

    async def test_the_models_mistake_is_no_failure_of_the_world(self, scripted):
        World.faults["step"] = [ActionError("invalid", reward=-0.5)]
        sample, journal = await play(scripted("snapshot"), ScriptedEngines(replies(*FOUR)))

        assert journal.turns[0].observation[4] == ID["invalid"]
        assert [turn.env_retries for turn in journal.turns] == [0] * 4
        assert sample.reward == pytest.approx(0.25)

    async def test_a_hanging_step_is_timed_out_and_retried_and_blocks_nobody(self, scripted):
        World.faults["step"] = [0.6]
        loaded = scripted("snapshot", **{"environment.step_timeout": 0.1, "environment.executor_threads": 1})
        began = time.monotonic()
        sample, journal = await play(loaded, ScriptedEngines(replies(*FOUR)))

        assert sample.stop_reason is StopReason.MAX_TURNS
        assert journal.turns[0].env_retries == 1
        assert time.monotonic() - began < 0.6

    async def test_what_close_raises_concerns_nobody(self, scripted):
        World.faults["close"] = [RuntimeError("too late")]
        sample, _ = await play(scripted("snapshot"), ScriptedEngines(replies(*FOUR)))

        assert sample.stop_reason is StopReason.MAX_TURNS


class TestResume:
    @pytest.mark.parametrize("kind", ["snapshot", "replay"])
    @pytest.mark.parametrize("kept", range(1, 5))
    async def test_after_every_commit_another_process_goes_on_to_the_same_trajectory(self, scripted, kind, kept):
        loaded = scripted(kind)
        cuts = [None, 1, None, None, None]
        script = ("1 .", "2 .", ".", "3 .", "4 .")
        whole, journal = await play(loaded, ScriptedEngines(replies(*script), cuts))
        resumed = RecordingJournal()
        resumed.records = journal.records[: 1 + kept]

        again, _ = await play(loaded, ScriptedEngines(replies(*script[kept:]), cuts[kept:]), resumed)

        assert again.tokens.tolist() == whole.tokens.tolist()
        assert again.loss_mask.tolist() == whole.loss_mask.tolist()
        assert again.reward == whole.reward

    async def test_a_snapshot_is_loaded_and_nothing_is_played_again(self, scripted):
        await resume_after_two_turns(scripted("snapshot"))

        assert World.calls == ["build", "load", "step 3", "step", "step 4", "step", "close"]

    async def test_a_replay_plays_the_recorded_actions(self, scripted):
        await resume_after_two_turns(scripted("replay"))

        assert [call for call in World.calls if call.startswith("step ")] == ["step 1", "step 2", "step 3", "step 4"]

    async def test_a_replay_that_sees_something_else_fails_with_both_sides_shown(self, scripted):
        journal = await resume_after_two_turns(scripted("replay"), noise=True)

        assert journal.failure is not None
        reason, detail = journal.failure
        assert reason is StopReason.ENV_FAILURE
        assert "turn 0" in detail
        assert "user\\n1<" in detail
        assert "user\\n9<" in detail

    async def test_an_environment_that_cannot_come_back_begins_again(self, scripted):
        journal = await resume_after_two_turns(scripted("restart"), script=FOUR)

        assert journal.restarts == 1
        assert [turn.index for turn in journal.turns] == [0, 1, 2, 3]

    async def test_a_restart_leaves_nothing_of_the_earlier_attempt(self, scripted):
        loaded = scripted("restart")
        _, journal = await play(loaded, ScriptedEngines(replies(*FOUR)))
        cut = RecordingJournal()
        cut.records = journal.records[:3]

        sample, _ = await play(loaded, ScriptedEngines(replies("5 .", "6 .", "7 .", "8 .")), cut)

        written = sample.response[sample.loss_mask == 1]
        assert written.tolist() == ids("5 <|im_end|> 6 <|im_end|> 7 <|im_end|> 8 <|im_end|>")
        np.testing.assert_allclose(sample.rollout_log_probs[sample.loss_mask == 1], -written / 100)
        assert observations(sample) == [1, 2, 3]

    async def test_seconds_before_a_restart_count_against_the_deadline(self, scripted):
        loaded = scripted("restart", **{"rollout.deadline": 100.0})
        _, journal = await play(loaded, ScriptedEngines(replies(*FOUR)))
        spent = RecordingJournal()
        spent.records = [journal.records[0], replace(journal.turns[0], active_seconds=101.0)]

        _, spent = await play(loaded, ScriptedEngines(replies(*FOUR)), spent)

        assert spent.failure == (StopReason.ENGINE_FAILURE, "no token within rollout.deadline=100 seconds")


async def resume_after_two_turns(loaded, *, noise=False, script=FOUR[2:]) -> RecordingJournal:
    """Plays two turns, forgets everything but the journal, and goes on; the world remembers only the second part."""
    _, journal = await play(loaded, ScriptedEngines(replies(*FOUR)))
    cut = RecordingJournal()
    cut.records = journal.records[:3]
    World.clear()
    World.noise, World.built = noise, 1
    return (await play(loaded, ScriptedEngines(replies(*script)), cut))[1]


class TestRewardFunction:
    async def test_it_scores_the_finished_sample_instead_of_the_turns(self, scripted):
        loaded = scripted("snapshot", **{"environment.reward_path": "scripted_env:reward"})
        sample, _ = await play(loaded, ScriptedEngines(replies(*FOUR)))

        assert sample.reward == 4.0

    @pytest.mark.parametrize("failure", [RuntimeError("judge down"), asyncio.CancelledError(), SystemExit(1)])
    async def test_its_failure_is_infrastructure(self, scripted, failure):
        World.faults["reward"] = [failure]
        loaded = scripted("snapshot", **{"environment.reward_path": "scripted_env:reward"})
        sample, _ = await play(loaded, ScriptedEngines(replies(*FOUR)))

        assert sample.reward == 4.0
        assert World.calls.count("reward") == 2


@pytest.mark.parametrize("executor", ["threads", "processes"])
async def test_wherever_it_runs_a_step_that_hangs_is_tried_again_from_where_the_episode_was(
    rollout, tmp_path, executor
):
    loaded = rollout(**{
        "environment.path": "hanging_env", "environment.args": {"marker": str(tmp_path / "hung")},
        "environment.executor": executor, "environment.step_timeout": 0.3, "rollout.max_turns": 4,
    })  # fmt: skip
    sample, journal = await play(loaded, ScriptedEngines(replies(*FOUR)))
    loaded.close()

    assert (sample.stop_reason, sample.reward) == (StopReason.MAX_TURNS, 4.0)
    assert [turn.environment for turn in journal.turns] == [{"steps": steps} for steps in (1, 2, 3, 4)]
    assert [turn.env_retries for turn in journal.turns] == [0, 1, 0, 0]
