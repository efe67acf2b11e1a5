"""Tasks of tau2 in solo mode, as an environment: its worlds, its tools, its reward."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from stream_rl.envs import tau2
from stream_rl.envs.base import EnvSample, ResumeClass, resume_class
from stream_rl.envs.loading import load_environment
from stream_rl.errors import ActionError, EnvironmentLoadError

pytest.importorskip("tau2")

MOCK = {"domain": "mock"}
DONE: tuple[str, Mapping[str, Any]] = ("done", {})
CREATE = ("create_task", {"user_id": "user_1", "title": "Important Meeting"})


def opened(task: str, **args: Any) -> Any:
    module, given = load_environment("tau2"), SimpleNamespace(**{**MOCK, **args})
    env = module.build_env(sample=EnvSample("", {"task": task}), args=given, **module.named(given))
    assert env.reset() == ({}, {})
    return env


def hermes(*calls: tuple[str, Mapping[str, Any]]) -> str:
    return "".join(
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>" for name, arguments in calls
    )


def golden(task: str, **args: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """The calls by which tau2 itself solves a task."""
    found = tau2._tasks(args["domain"], args["split"])[task]
    return [(action.name, action.arguments) for action in found.evaluation_criteria.actions]


def test_the_prompt_has_policy_tools_and_ticket_and_all_tasks_come_round() -> None:
    args = SimpleNamespace(**MOCK)
    rows = [tau2.prompt(0, index, args) for index in range(10)]
    system, ticket = rows[0]["prompt"]
    assert system["role"] == "system"
    for part in ("Task status can only be", '"name":"create_task"', '"name":"done"', "<tool_call>"):
        assert part in system["content"]
    assert ticket["content"].startswith("Ticket: User needs to ")
    first, second = ([row["label"]["task"] for row in part] for part in (rows[:5], rows[5:]))
    assert sorted(first) == sorted(second) == sorted(tau2._tasks("mock", "base"))
    assert len({tau2.prompt(seed, 0, args)["label"]["task"] for seed in range(9)}) > 1


def test_a_solved_ticket_has_tau2s_reward_and_an_unsolved_one_has_none() -> None:
    env = opened("create_task_1_with_env_assertions")
    observation, done, info = env.step(f"I create it. {hermes(CREATE)}")
    assert (done, info) == (False, {})
    assert observation["obs_str"].startswith("<tool_response>\n")
    assert json.loads(observation["obs_str"].split("\n")[1])["title"] == "Important Meeting"
    assert env.step(hermes(DONE)) == ({}, True, {"reward": 1.0})

    assert opened("create_task_1_with_env_assertions").step(hermes(DONE)) == ({}, True, {"reward": 0.0})


def test_the_actions_count_where_the_task_says_so() -> None:
    text = "User needs to delete all their current tasks. This is not possible to do with the tools available."
    env = opened("impossible_task_1", parser="llama3_json")
    env.step(json.dumps({"name": "transfer_to_human_agents", "parameters": {"summary": text}}))
    assert env.step('{"name": "done", "parameters": {}}')[2] == {"reward": 1.0}
    assert opened("impossible_task_1").step(hermes(DONE))[2] == {"reward": 0.0}


def test_an_initial_state_is_where_the_ticket_begins() -> None:
    env = opened("update_task_with_initialization_actions")
    assert (
        "Error"
        not in env.step(hermes(("update_task_status", {"task_id": "task_2", "status": "completed"})))[0]["obs_str"]
    )
    assert env.step(hermes(DONE))[2] == {"reward": 1.0}


def test_what_is_no_call_is_the_models_mistake_and_too_many_failed_ones_end_it() -> None:
    env = opened("create_task_1", max_errors=1)
    for text, reason in (("I am done.", "Only tool calls are read"), ("<tool_call>{oops</tool_call>", "no JSON")):
        with pytest.raises(ActionError, match=reason):
            env.step(text)
    observation, done, _ = env.step(hermes(("delete_task", {}), CREATE) + "<tool_call>[]</tool_call>")
    assert (observation, done) == ({}, True), "two of three calls failed"

    observation, done, _ = opened("create_task_1").step(hermes(("delete_task", {}), CREATE))
    assert not done
    assert "Error: Tool 'delete_task' not found" in observation["obs_str"]


def test_an_episode_comes_back_from_its_snapshot_with_its_world_and_its_calls() -> None:
    played, fresh = opened("create_task_1"), opened("create_task_1")
    assert resume_class(played) is ResumeClass.SNAPSHOT
    played.step(hermes(CREATE, ("nothing", {})))
    state = json.loads(json.dumps(played.state_dict()))
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state
    assert (state["errors"], state["calls"]) == (1, [list(CREATE), ["nothing", {}]])
    assert fresh.step(hermes(DONE)) == played.step(hermes(DONE)) == ({}, True, {"reward": 1.0})


SMALL = {"domain": "telecom", "split": "small"}


def small(part: str) -> str:
    return next(name for name in sorted(tau2._tasks("telecom", "small")) if part in name)


@pytest.mark.parametrize("part", ["overdue_bill_suspension", "data_usage_exceeded", "break_apn_settings"])
def test_a_telecom_ticket_is_solved_by_the_calls_of_both_sides(part: str) -> None:
    env = opened(small(part), **SMALL)
    for call in golden(small(part), **SMALL):
        assert "Error" not in env.step(hermes(call))[0]["obs_str"]
    assert env.step(hermes(DONE)) == ({}, True, {"reward": 1.0})


def test_names_made_up_at_random_come_back_with_the_snapshot() -> None:
    """A refuel makes a bill with such a name: played again it would be another."""
    refuel = ("refuel_data", {"customer_id": "C1002", "line_id": "L1004", "gb_amount": 1.0})
    asked = hermes(("get_customer_by_id", {"customer_id": "C1002"}))
    played, again, fresh = (opened(small("data_usage_exceeded"), **SMALL) for _ in range(3))
    for env in (played, again):
        assert "Error" not in env.step(hermes(refuel))[0]["obs_str"]
    fresh.load_state_dict(json.loads(json.dumps(played.state_dict())))
    assert fresh.step(asked) == played.step(asked) != again.step(asked)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"domain": "retail"}, "args.domain='retail' must be one of telecom.*solo mode"),
        ({"split": "trian"}, "args.split='trian' must be one of base"),
        ({"parser": "xml"}, "args.parser='xml' must be one of hermes, llama3_json"),
    ],
)
def test_wrong_settings_are_named(args: dict[str, Any], reason: str) -> None:
    with pytest.raises(EnvironmentLoadError, match=reason):
        tau2.prompt(0, 0, SimpleNamespace(**{**MOCK, **args}))
    with pytest.raises(EnvironmentLoadError, match="has no task 'x'"):
        opened("x")
