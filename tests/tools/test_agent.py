"""The tool agent from answer to answer: what it shows, calls, observes and counts, and how it comes back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from byte_chat import NO_TOOL_ROLE, SHOWN, TURNS, answer, byte_tokenizer, call, calls
from tool_fixtures import HERE, World, in_place

from stream_rl.agents import AgentContext
from stream_rl.agents.context import Surroundings
from stream_rl.agents.handover import Handover, Pause
from stream_rl.agents.run import AgentRun
from stream_rl.envs.base import EnvSample, ResumeClass, resume_class
from stream_rl.errors import ConfigError, EnvInfraError, ModelError
from stream_rl.producer.chat import ChatEncoder
from stream_rl.tools.agent import ToolAgent


@pytest.fixture(autouse=True)
def _fresh_world():
    World.clear()


class Played:
    """One loop, driven as the producer drives it."""

    def __init__(self, *tools: str, template: str = SHOWN + TURNS, results: Any = None, **more: Any) -> None:
        self.tokenizer = byte_tokenizer(template)
        chat = ChatEncoder(self.tokenizer, [self.tokenizer.eos_token_id])
        args = SimpleNamespace(tool_agent={"tools": [f"{HERE}:{tool}" for tool in tools], **more})
        sample = EnvSample("How much?", 7)
        messages = ({"role": "user", "content": "How much?"},)
        handover = Handover(results)
        self.context = AgentContext(Surroundings(sample, messages, args, {}, chat, in_place), handover)
        self.agent = ToolAgent(self.context)
        self.run = AgentRun(self.agent, self.context, handover)

    async def start(self) -> Played:
        await self.run.start({"prompt": "How much?"})
        return self

    async def say(self, text: str, finish_reason: str = "stop") -> Pause:
        return await self.run.go_on(answer(self.tokenizer, text, finish_reason))

    def delta(self, said: str, pause: Pause) -> str:
        """What the model reads between two answers."""
        ids = self.context.chat.encode_observation(pause.observed, answer(self.tokenizer, said).tokens)
        return self.tokenizer.decode(ids)


async def test_calls_are_answered_in_the_tool_role_until_an_answer_has_none():
    played = await Played("add", "divide").start()
    prompt = played.context.chat.render(played.context.messages, True)
    assert prompt.count('"parameters"') == 2

    said = calls(call("add", '{"a": 1, "b": 2}'), call("divide", '{"a": 1, "b": 4}'))
    pause = await played.say(f"Both. {said}")
    assert [(m["role"], m["name"], m["content"]) for m in pause.observed] == [
        ("tool", "add", "3"),
        ("tool", "divide", "0.25"),
    ]
    assert (pause.reward, pause.parse_failures, pause.done) == (0.5, 0, False)
    delta = "\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>tool\n0.25<|im_end|>\n<|im_start|>assistant\n"
    assert played.delta(said, pause) == delta

    assert (await played.say("It is 3.")).done


async def test_calls_that_cannot_be_made_are_answered_and_counted():
    played = await Played("add").start()

    pause = await played.say(calls("{oops}", call("subtract", "{}"), call("add", '{"a": 2}')))
    assert (pause.parse_failures, pause.done) == (2, False)
    texts = [message["content"] for message in pause.observed]
    assert "no JSON" in texts[0]
    assert "there is no tool 'subtract', but add" in texts[1]
    assert texts[2] == "3"


async def test_an_answer_that_was_cut_calls_nothing():
    played = await Played("add").start()
    assert (await played.say(calls(call("add", '{"a": 1}')), "length")).done
    assert not World.calls


async def test_a_template_that_does_not_show_tools_is_refused_unless_the_prompt_shows_them():
    with pytest.raises(ModelError, match="does not show tools"):
        await Played("add", template=TURNS).start()
    played = await Played("add", template=TURNS, shown_by="prompt").start()
    assert (await played.say(calls(call("add", '{"a": 1}')))).observed[0]["content"] == "2"


async def test_a_template_without_a_tool_role_gets_one_user_message():
    played = await Played("add", template=NO_TOOL_ROLE + SHOWN + TURNS).start()
    said = calls(call("add", '{"a": 1}'), call("add", '{"a": 2}'))

    pause = await played.say(said)
    responses = "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>"
    assert pause.observed == ({"role": "user", "content": responses},)
    assert responses in played.delta(said, pause)


async def test_without_a_state_it_comes_back_by_recorded_results_and_calls_nothing_twice():
    results: dict[int, Any] = {}
    first = await Played("add", "divide", results=results).start()
    script = [calls(call("add", '{"a": 1}'), call("divide", '{"a": 1, "b": 0}')), calls(call("add", '{"a": 5}'))]
    before = [await first.say(text) for text in script]

    again = await Played("add", "divide", results=dict(results)).start()
    assert resume_class(again.agent) is ResumeClass.REPLAY
    after = [await again.say(text) for text in script]
    assert [(p.observed, p.reward, p.parse_failures) for p in after] == [
        (p.observed, p.reward, p.parse_failures) for p in before
    ]
    assert World.calls == ["add 1 1", "add 5 1"]


async def test_states_come_back_by_snapshot_and_replayed_tools_by_their_calls():
    count = calls(call("counter", '{"by": 3}'))
    first = await Played("SnapshotCounter").start()
    await first.say(count)
    assert resume_class(first.agent) is ResumeClass.SNAPSHOT

    again = Played("SnapshotCounter")
    again.agent.load_state_dict(first.agent.state_dict())
    await again.start()
    assert (await again.say(count)).observed[0]["content"] == "6"

    replayed = await Played(
        "ReplayedCounter", "add", results={0: {"name": "add", "text": "kept", "outcome": "ok"}}
    ).start()
    assert resume_class(replayed.agent) is ResumeClass.REPLAY
    pause = await replayed.say(count + calls(call("add", '{"a": 1}')))
    assert [message["content"] for message in pause.observed] == ["3", "kept"]
    assert resume_class(Played("Counter").agent) is ResumeClass.RESTART


async def test_what_it_holds_is_released_where_the_episode_ends_for_it():
    ended, cancelled, failed = [await Played("Counter", "add").start() for _ in range(3)]
    await ended.say("No call.")
    assert await cancelled.run.cancel(1.0)
    World.faults = [OSError("down")]
    with pytest.raises(EnvInfraError, match="tool add: OSError: down"):
        await failed.say(calls(call("add", '{"a": 1}')))
    await asyncio.sleep(0)
    assert World.calls.count("release at 0") == 3


async def test_settings_that_are_missing_are_named():
    with pytest.raises(ConfigError, match=r"environment\.args\.tool_agent\.tools"):
        Played()
