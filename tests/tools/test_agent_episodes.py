"""Whole episodes of the tool agent in the turn loop, with a scripted model: the example, and a resume from anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from byte_chat import END, LLAMA, LLAMA_MARKS, byte_model, byte_tokenizer, call, calls
from rollouts import RecordingJournal, ScriptedEngines, play, run_config
from tool_fixtures import HERE, World
from transformers import GenerationConfig

from stream_rl.config import Config
from stream_rl.engine.fleet import Fleet
from stream_rl.errors import ActionError
from stream_rl.producer.loading import Rollout, load_rollout
from stream_rl.producer.prompts import PromptRow
from stream_rl.sample import StopReason
from stream_rl.testing import FakeEngineServer, scripted

TOKENIZER = byte_tokenizer()
ROW = PromptRow("How much?", 7, {"agent_name": "tool_agent"})
ROOM = {"rollout.max_turn_len": 256, "rollout.max_response_len": 4096, "rollout.max_context_len": 8192}


@pytest.fixture(autouse=True)
def _fresh_world():
    World.clear()


def saying(*answers: str, shown: int = 0) -> Callable[[list[int]], Sequence[int]]:
    """A policy that gives one answer after the other, going on with what it has begun; `shown` stand in the prompt."""

    def reply(given: list[int]) -> Sequence[int]:
        *turns, begun = TOKENIZER.decode(given).split("<|im_start|>assistant\n")
        whole = answers[len(turns) - 1 - shown] + END
        assert whole.startswith(begun)
        return TOKENIZER.encode(whole[len(begun) :], add_special_tokens=False)

    return reply


@pytest.fixture
def agent(tmp_path: Path) -> Callable[..., Rollout]:
    """`agent("add")`: a loaded run whose agent has these tools."""

    def load(*tools: str, **settings: Any) -> Rollout:
        own = {"environment.args": {"tool_agent": {"tools": [f"{HERE}:{tool}" for tool in tools]}}}
        return load_rollout(run_config(tmp_path / "run", byte_model(tmp_path / "model"), {**ROOM, **own, **settings}))

    return load


SCRIPT = (
    calls(call("counter", '{"by": 2}'), call("add", '{"a": 1, "b": 2}')),
    calls("{oops"),
    calls(call("counter", '{"by": 5}')),
    "Seven.",
)


@pytest.mark.parametrize("kind", ["SnapshotCounter", "ReplayedCounter", "Counter"])
async def test_an_episode_resumed_after_any_commit_is_the_uninterrupted_one(agent, kind):
    rollout = agent(kind, "add")
    whole, journal = await play(rollout, ScriptedEngines(saying(*SCRIPT), cuts=[3, None, 7]), row=ROW)
    assert (whole.stop_reason, whole.parse_failures) == (StopReason.MODEL_DONE, 1)
    assert "tool\n7<|im_end|>" in TOKENIZER.decode(whole.tokens.tolist())

    for length in range(1, len(journal.records)):
        World.clear()
        resumed = RecordingJournal()
        resumed.records = journal.records[:length]
        sample, _ = await play(rollout, ScriptedEngines(saying(*SCRIPT)), resumed, row=ROW)
        assert sample.tokens.tolist() == whole.tokens.tolist()
        assert sample.loss_mask.tolist() == whole.loss_mask.tolist()
        assert World.calls[-1] == "release at 7"
        if kind != "Counter" and length > 2:
            assert "add 1 2" not in World.calls, "its result was recorded"


async def test_failures_of_tools_are_retried_within_the_budgets_and_never_end_in_a_reward(agent):
    rollout = agent("add", **{"environment.max_env_retries_per_turn": 1})
    script = saying(calls(call("add", '{"a": 1}')), "Two.")
    World.faults = [OSError("down")]
    sample, journal = await play(rollout, ScriptedEngines(script), row=ROW)
    assert (sample.stop_reason, journal.turns[0].env_retries) == (StopReason.MODEL_DONE, 1)

    World.faults = [OSError("down"), OSError("still down")]
    sample, journal = await play(rollout, ScriptedEngines(script), row=ROW)
    assert sample.stop_reason is StopReason.ENV_FAILURE
    assert journal.outcome is None
    assert "still down" in journal.failure[1]


async def test_a_model_that_only_makes_mistakes_is_stopped(agent):
    rollout = agent("add", **{"environment.max_parse_failures": 2, "rollout.max_turns": 50})
    sample, _ = await play(rollout, ScriptedEngines(saying(*[calls("{oops")] * 9)), row=ROW)
    assert (sample.stop_reason, len(sample.turns)) == (StopReason.PARSE_FAILURES, 3)


async def test_a_whole_episode_of_calls_as_llama_3_writes_them(tmp_path):
    """Over HTTP, token by token: calls after a python tag, one without, a broken one, and the plain answer."""
    tokenizer = byte_tokenizer(LLAMA, "<|eot_id|>", LLAMA_MARKS)
    tokenizer.save_pretrained(tmp_path / "model")
    stops = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|eom_id|>")]
    GenerationConfig(eos_token_id=stops).save_pretrained(tmp_path / "model")
    tools = {"tools": [f"{HERE}:{tool}" for tool in ("add", "divide")], "parser": "llama3_json"}
    rollout = load_rollout(
        run_config(tmp_path / "run", tmp_path / "model", {**ROOM, "environment.args": {"tool_agent": tools}})
    )
    script = [
        '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": 2}}; '
        '{"name": "divide", "parameters": {"a": 1, "b": 4}}<|eom_id|>',
        '{"name": "add", "parameters": {"a": 40, "b": 2}}<|eot_id|>',
        '<|python_tag|>{"name": "add", "parameters": {"a": <|eot_id|>',
        "It is 42.<|eot_id|>",
    ]
    said = [tokenizer.encode(text, add_special_tokens=False) for text in script]
    async with FakeEngineServer(scripted(*said), vocab_size=len(tokenizer), context_length=8192) as engine:
        fleet = Fleet(vocab_size=len(tokenizer), timeout=30.0)
        await fleet.refresh([("engine-0", engine.url)])
        sample, journal = await play(rollout, fleet, row=ROW)
        await fleet.close()

    assert (sample.stop_reason, sample.parse_failures, len(journal.turns)) == (StopReason.MODEL_DONE, 1, 4)
    results = ["<|start_header_id|>ipython<|end_header_id|>\n\n" + text for text in ("3", "0.25", "42", "Error: ")]
    text = tokenizer.decode(sample.tokens.tolist())
    assert [text.count(result) for result in results] == [1, 1, 1, 1]
    assert World.calls == ["add 1 2", "add 40 2"]
    generated = [turn.generated.tolist() for turn in journal.turns]
    assert generated == said, "what the engine wrote is what is trained, id for id"
    given = [request["input_ids"] for request in engine.requests]
    for before, after, answer in zip(given, given[1:], said, strict=False):
        assert after[: len(before) + len(answer)] == before + answer


def example(tmp_path: Path, name: str, *settings: str) -> tuple[Rollout, PromptRow]:
    """An example with a model that writes bytes, and its first prompt."""
    room = ["rollout.max_turn_len=200", "rollout.max_response_len=2000", "rollout.max_context_len=4000"]
    own = [f"run={tmp_path}/run", f"model.path={byte_model(tmp_path / 'model')}", *room]
    rollout = load_rollout(Config.load(f"examples/{name}.yaml", [*own, *settings]))
    return rollout, rollout.prompts.row(0)


@pytest.mark.usefixtures("in_the_checkout")
async def test_the_example_answers_an_undecodable_call_and_rewards_the_right_answer(tmp_path):
    rollout, row = example(tmp_path, "tool_agent_arithmetic")
    left, right = re.findall(r"\d+", row.prompt[-1]["content"])
    good = calls(call("calculate", f'{{"expression": "{left} * {right}"}}'))
    bad = calls(f"calculate({left} * {right})")

    for script, reward, failures in (
        ((bad, good, f"It is {row.label}."), 1.0, 1),
        ((good, "I do not know."), 0.1, 0),
        ((bad, bad, bad), 0.0, 3),
    ):
        sample, _ = await play(rollout, ScriptedEngines(saying(*script, shown=4)), row=row)
        assert (sample.reward, sample.parse_failures) == (reward, failures)
    assert "no JSON" in TOKENIZER.decode(sample.tokens.tolist())


@pytest.mark.usefixtures("in_the_checkout")
async def test_the_example_with_an_mcp_server_asks_a_real_one(tmp_path):
    rollout, row = example(tmp_path, "mcp_tool", "environment.args.tool_agent.tool_timeout=30")
    count, item = re.findall(r"for (\d+) (\w+)", row.prompt[-1]["content"])[0]
    good = calls(call("price", f'{{"item": "{item}", "count": {count}}}'))
    nothing = calls(call("price", '{"item": "moon"}'))
    wrong = calls(call("price", '{"count": 2}'))

    for script, reward, failures in (
        ((nothing, good, f"It is {row.label}."), 1.0, 0),
        ((wrong, "I do not know."), 0.0, 1),
    ):
        sample, _ = await play(rollout, ScriptedEngines(saying(*script, shown=2)), row=row)
        assert (sample.reward, sample.parse_failures) == (reward, failures)
        text = TOKENIZER.decode(sample.tokens.tolist())
        assert ("there is no moon here" in text) == (f"tool\n{row.label}<|im_end|>" in text) == (reward == 1.0)


@pytest.mark.usefixtures("in_the_checkout")
def test_the_examples_calculator_calculates_and_nothing_else():
    from examples.tool_agent_arithmetic import calculate  # noqa: PLC0415 - importable in the checkout only

    assert calculate(" 2 * (3 - -4) + 1 ") == 15
    for nonsense in ("2 ** 999", "__import__('os')", "1 +", "1.5", "9" * 200, "True", "(" * 90):
        with pytest.raises(ActionError):
            calculate(nonsense)
