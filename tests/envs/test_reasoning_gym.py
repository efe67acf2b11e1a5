"""Tasks of reasoning-gym with feedback."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stream_rl.envs.base import EnvSample
from stream_rl.envs.reasoning_gym import build_env, prompt
from stream_rl.errors import ActionError, EnvironmentLoadError

ARGS = SimpleNamespace(dataset="chain_sum", config={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})


def answer_of(made) -> str:
    return str(eval(made["prompt"].partition(":")[2].rstrip("= ")))


def test_a_wrong_answer_is_answered_and_another_try_can_solve_it():
    made = prompt(0, 5, ARGS)
    env = build_env(EnvSample(made["prompt"], made["label"]), **vars(ARGS))
    env.reset()

    observation, done, first = env.step("<answer>1000</answer>")
    assert not done
    assert "try again" in observation["obs_str"]
    _, done, second = env.step(f"I see: <answer>{answer_of(made)}</answer>")

    assert done
    assert first["reward"] + second["reward"] == pytest.approx(1.0)


def test_the_answer_may_stand_without_marks_and_an_empty_one_is_none():
    made = prompt(0, 6, ARGS)
    env = build_env(EnvSample(made["prompt"], made["label"]), **vars(ARGS))

    with pytest.raises(ActionError, match="empty"):
        env.step("  ")
    assert env.step(answer_of(made))[1]


def test_the_best_score_survives_a_snapshot_and_is_not_paid_twice():
    made = prompt(0, 7, ARGS)
    first, second = (build_env(EnvSample(made["prompt"], made["label"]), **vars(ARGS)) for _ in range(2))
    first.step(answer_of(made))
    second.load_state_dict(first.state_dict())

    assert second.step(answer_of(made))[2]["reward"] == 0.0


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({}, r"environment\.args\.dataset is missing"),
        ({"dataset": "chain_sums"}, "'chain_sums' is no generator of reasoning-gym: did you mean 'chain_sum'"),
        ({"dataset": 7}, "'7' is no generator"),
        ({"dataset": "chain_sum", "config": {"min_terms": -1}}, r"config=.*-1.* of 'chain_sum': AssertionError"),
        ({"dataset": "chain_sum", "config": {"unknown": 1}}, "unknown"),
        (
            {"dataset": "chain_sum", "config": {"min_terms": "two"}},
            r"environment\.args\.config=.*'chain_sum': TypeError",
        ),
        ({"dataset": "chain_sum", "config": ["min_terms"]}, "must be a mapping of options by name"),
        ({"dataset": "chain_sum", "config": {"min_terms": 1.5, "max_terms": 2.5}}, "gives no task: "),
    ],
)
def test_a_task_that_cannot_be_made_names_the_setting(args, reason):
    with pytest.raises(EnvironmentLoadError, match=reason):
        prompt(0, 0, SimpleNamespace(**args))
