"""Calls of one trajectory: concurrent, bounded, answered one by one; mistakes are the model's, failures the world's."""

from __future__ import annotations

import pytest
from tool_fixtures import World, context, settings

from stream_rl.envs.tool_calls import ToolCall, Undecodable
from stream_rl.errors import ConfigError, EnvFatalError, EnvInfraError
from stream_rl.metrics import catalog
from stream_rl.tools.session import ToolSession
from stream_rl.tools.toolbox import Toolbox


@pytest.fixture(autouse=True)
def _fresh_world():
    World.clear()


async def opened(*tools, results=None, **more) -> ToolSession:
    session = ToolSession(Toolbox(settings(*tools, **more)), context(results))
    await session.open()
    return session


def counted(tool: str, outcome: str) -> float:
    name = "stream_rl_tool_calls_total"
    return catalog.TOOL_CALLS.registry.get_sample_value(name, {"tool": tool, "outcome": outcome}) or 0.0


async def test_calls_of_one_turn_run_at_the_same_time_and_are_answered_in_order():
    session = await opened("slow_echo", "add")

    answers = await session.answer(
        [ToolCall("slow_echo", {"text": "x"}), ToolCall("slow_echo", {"text": "y"}), ToolCall("add", {"a": 1, "b": 2})]
    )

    assert [answer.text for answer in answers] == ["x", "y", "3"]
    assert not any(answer.mistaken for answer in answers)
    echoes = [call for call in World.calls if not call.startswith("add")]
    assert echoes == ["begin x", "begin y", "end x", "end y"]
    assert "MainThread" not in World.threads


async def test_every_mistake_of_the_model_is_answered_and_counted_under_a_bounded_label():
    session = await opened("add", "divide", max_parallel_calls=5)
    before = counted("", "unknown_tool"), counted("", "undecodable")

    answers = await session.answer(
        [
            Undecodable("a tool call is no JSON"),
            ToolCall("add\n" * 50, {}),
            ToolCall("add", {"a": "one"}),
            ToolCall("add", {"a": 1, "c": 2}),
            ToolCall("divide", {"a": 1, "b": 0}),
            ToolCall("add", {"a": 1}),
        ]
    )

    assert all(answer.mistaken and answer.text.startswith("Error: ") for answer in answers)
    outcomes = ["undecodable", "unknown_tool", "mistake", "mistake", "mistake", "too_many"]
    assert [answer.outcome for answer in answers] == outcomes
    assert "but add, divide" in answers[1].text
    assert "unexpected keyword argument 'c'" in answers[3].text
    assert (answers[4].text, answers[4].reward) == ("Error: nothing is divided by zero", -0.5)
    assert (counted("", "unknown_tool"), counted("", "undecodable")) == (before[0] + 1, before[1] + 1)
    assert not World.calls, "nothing was called"


async def test_a_result_may_carry_a_reward_and_is_cut_by_tokens():
    session = await opened("divide", "slow_echo", max_tool_response_len=9)

    divided, long = await session.answer(
        [ToolCall("divide", {"a": 3, "b": 2}), ToolCall("slow_echo", {"text": "w " * 500})]
    )
    assert (divided.text, divided.reward) == ("1.5", 0.5)
    assert long.text.split() == [*"wwww", "...", *"wwww"]


async def test_a_failure_of_the_world_is_raised_and_named():
    session = await opened("add", tool_timeout=0.05)
    World.faults = [ValueError("disk full"), 0.4, EnvFatalError("gone")]

    with pytest.raises(EnvInfraError, match="tool add: ValueError: disk full") as failed:
        await session.answer([ToolCall("add", {"a": 1})])
    assert failed.value.cause == "unknown"
    with pytest.raises(EnvInfraError, match=r"tool add: no result within 0\.05 seconds") as late:
        await session.answer([ToolCall("add", {"a": 1})])
    assert late.value.cause == "timeout"


async def test_a_try_after_a_failure_repeats_only_the_call_that_failed():
    results: dict = {}
    calls = [ToolCall("slow_echo", {"text": "paid"}), ToolCall("add", {"a": 1})]
    World.faults = [OSError("no network")]
    first = await opened("add", "slow_echo", results=results)
    with pytest.raises(EnvInfraError):
        await first.answer(calls)

    again = await opened("add", "slow_echo", results=results)
    assert [answer.text for answer in await again.answer(calls)] == ["paid", "2"]
    assert World.calls.count("begin paid") == 1


async def test_a_tool_with_a_state_is_created_for_the_sample_and_released():
    session = await opened({"path": "tool_fixtures:Counter", "config": {"start": 10}})

    answers = [(await session.answer([ToolCall("counter", {"by": by})]))[0].text for by in (1, 2)]
    await session.release()

    assert answers == ["11", "13"]
    assert World.calls == ["create for 7", "count 1", "count 2", "release at 13"]


async def test_states_are_taken_and_set():
    first, second = await opened("SnapshotCounter"), await opened("SnapshotCounter")
    await first.answer([ToolCall("counter", {"by": 4})])
    second.load_state_dict(first.state_dict())
    assert (await second.answer([ToolCall("counter", {"by": 1})]))[0].text == "5"


@pytest.mark.parametrize(
    ("tools", "resume"),
    [
        (("add",), "replay"),
        (("add", "SnapshotCounter"), "snapshot"),
        (("add", "ReplayedCounter"), "replay"),
        (("add", "Counter"), "restart"),
        (("add", {"mcp": {"command": ["x"], "scope": "trajectory"}}), "restart"),
        (("add", {"mcp": {"command": ["x"]}}), "replay"),
    ],
)
def test_a_trajectory_comes_back_as_its_tools_do(tools, resume):
    assert Toolbox(settings(*tools)).resume == resume


async def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two tools are called 'counter'"):
        await opened("SnapshotCounter", "ReplayedCounter")
