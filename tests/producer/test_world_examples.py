"""The examples of a world beside the run's: a judge, two engines of which one dies, an environment that hangs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_runs import one_step
from prometheus_client import REGISTRY

from stream_rl.envs import judge as judge_module
from stream_rl.models.tiny_text import WORDS
from stream_rl.testing import FakeEngineServer

sys.path.append(str(Path(__file__).parents[1] / "envs"))
from fake_judge import FakeJudge

pytestmark = pytest.mark.usefixtures("in_the_checkout")


@pytest.fixture
def judge() -> Iterator[FakeJudge]:
    """An endpoint that always says the same."""
    with FakeJudge(lambda _question: "correct 7 Score: 5") as running:
        yield running
        judge_module._client.cache_clear()


async def test_what_a_judge_says_follows_the_environments_answer(example, open_buffer, judge):
    config = example("judge", "rollout.groups_per_step=8", f"environment.args.judge.url={judge.url}")
    samples = await one_step(config, open_buffer)

    assert len(samples) == 16
    for sample in samples:
        said = " ".join(WORDS[token] for token in sample.tokens.tolist()).split()
        answers = len([word for word in said if word in ("higher", "lower")])
        assert said.count("correct") == answers
        assert sample.reward == 1.0 or 0.0 < sample.reward <= 0.1, "rewards are the environment's"
    assert any(sample.next_turn > 1 for sample in samples)
    questions = {body["messages"][-1]["content"] for body in judge.bodies}
    assert questions <= {f"guess {number}" for number in range(1, 9)}
    assert {(body["max_tokens"], body["min_tokens"]) for body in judge.bodies} == {(4, 4)}


async def test_a_judges_score_is_the_reward_where_that_is_asked_for(example, open_buffer, judge):
    settings = (f"environment.args.judge.url={judge.url}", "environment.args.judge.gives=reward")
    samples = await one_step(example("judge", "rollout.groups_per_step=4", *settings), open_buffer)

    assert {sample.reward for sample in samples} == {0.5}


def sessions(engine: FakeEngineServer) -> set[str]:
    """The trajectories that an engine was asked for."""
    return {request["rid"].partition("/")[0] for request in engine.requests}


async def test_turns_stay_at_their_engine_and_go_on_at_the_other_when_it_dies(example, open_buffer):
    both: list[FakeEngineServer] = []
    served: list[set[str]] = []

    async def kill(engines, buffer):
        both.extend(engines)
        await engines[0].arrived(20)
        engines[0].pause()
        served.extend(map(sessions, engines))
        await engines[0].stop()
        await buffer.engine_left("engine-0")

    config = example("two_engines", "rollout.groups_per_step=16")
    samples = await one_step(config, open_buffer, config.engine.count, kill)

    assert all(served)
    assert not served[0] & served[1], "as long as both served, each trajectory had one of them"
    assert served[0] & sessions(both[1]), "what the dead one had under way went on"
    assert len(samples) == 32
    assert sum(sample.next_turn for sample in samples) > 64


async def test_a_world_that_hangs_is_timed_out_counted_and_scored_by_nobody(example, open_buffer):
    def timeouts() -> float:
        labels = {"environment": "hanging_environment", "cause": "timeout", "outcome": "retried"}
        return REGISTRY.get_sample_value("stream_rl_env_retries_total", labels) or 0.0

    before = timeouts()
    settings = ("rollout.groups_per_step=8", "environment.args.every=10", "environment.step_timeout=0.3")
    samples = await one_step(example("hanging_environment", *settings), open_buffer)

    calls = next(sys.modules["environment_hanging_environment"].CALLS) - 1
    assert timeouts() - before == calls // 10 > 0
    assert len(samples) == 16
    for sample in samples:
        guesses = [turn.action for turn in sample.turns]
        found = guesses[-1] == str(sample.label)
        assert sample.reward == pytest.approx(1.1 - 0.1 * len(guesses) if found else 0.0)
