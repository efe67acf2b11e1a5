"""Token truth on the tokenizers and chat templates of eight real families; `families` says where each comes from.

Where a template only appends, what a turn loop puts together is the template applied to the whole conversation, id for
id. Where it rewrites history, what stands between two turns does not depend on it. Where appending would be wrong, it
is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from families import encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError

from stream_rl.errors import ModelError
from stream_rl.producer.chat import ChatEncoder
from stream_rl.producer.chat_delta import SENTINEL, assistant_turns, find_delta
from stream_rl.producer.chat_probe import KINDS

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}
ALL = ("user", "tool", "tools")
ONE_CALL = ("user", "tool")
TOOLS_ONLY = ("tool", "tools")

USABLE = {
    "smollm2": ALL, "qwen2_5": ALL, "qwen2_5_vl": ALL, "qwen3": ALL, "qwen3_instruct_2507": ALL, "qwen3_vl": ALL,
    "llama3": ALL, "llama3_1": ALL, "llama3_2": ALL, "mistral_v3": TOOLS_ONLY, "mistral_v7": ALL, "mistral_v13": ALL,
    "gemma": ("user",), "gemma3": ("user",), "deepseekv3": ("user",),
}  # fmt: skip
"""What can be appended to each family's template, without tools in the prompt."""

BESIDE_TOOLS = {
    "qwen2_5": ALL, "qwen3": ALL, "qwen3_instruct_2507": ALL, "qwen3_vl": ALL, "llama3_1": ALL, "llama3_2": ALL,
    "mistral_v3": TOOLS_ONLY, "mistral_v7": TOOLS_ONLY, "mistral_v13": ALL,
}  # fmt: skip
"""The same with tools, which these templates show to the model."""

# Llama's templates have no form for several calls in one turn, so there is no whole conversation to compare with.
WHOLE = {name: ONE_CALL if "llama" in name else kinds for name, kinds in USABLE.items() if name != "deepseekv3"}
WHOLE_BESIDE_TOOLS = {name: ONE_CALL if "llama" in name else kinds for name, kinds in BESIDE_TOOLS.items()}


class Round(NamedTuple):
    """What the model said, whether it ended with a stop token, and what it is shown then: messages of one kind."""

    answer: str
    ended: bool
    kind: str
    shown: tuple[str, str]


# It begins and ends with a letter or digit: templates trim, and some vocabularies join white space where pieces meet.
texts = st.from_regex(r"[a-zA-Z0-9](?:[\w .,:;!?\"'\\{}<|>\n\t🎉漢é-]{0,24}[a-zA-Z0-9])?", fullmatch=True)


def rounds(kinds: Sequence[str]) -> st.SearchStrategy[list[Round]]:
    one = st.builds(Round, texts, st.booleans(), st.sampled_from(kinds), st.tuples(texts, texts))
    return st.lists(one, min_size=1, max_size=4)


def observation(one: Round) -> list[dict[str, str]]:
    return [{**message, "content": text} for message, text in zip(KINDS[one.kind], one.shown, strict=False)]


def answers(one: Round, number: int) -> list[dict[str, object]]:
    """Forms of the round's answer; one that calls tools says its number where others say text."""
    said = one.answer if one.kind == "user" else f"n{number}"
    forms = [json.dumps(form) for form in assistant_turns(observation(one))]
    return [json.loads(form.replace(SENTINEL, json.dumps(said)[1:-1])) for form in forms]


def whole_conversation(chat: ChatEncoder, opening: list[dict[str, str]], played: Sequence[Round]) -> list[list]:
    """The messages before each generation, the whole last, each turn in the first form that shows what it says."""
    conversations: list[list] = [list(opening)]
    for number, one in enumerate(played):
        conversations.append(gone_on(chat, conversations[-1], one, number))
    return conversations


def gone_on(chat: ChatEncoder, before: list, one: Round, number: int) -> list:
    """`before` and one round more. A template may raise on a form of the turn, as long as it shows another."""
    why = []
    for answer in answers(one, number):
        longer = [*before, answer, *observation(one)]
        try:
            shown = chat.render(longer, True)
        except (TemplateError, TypeError) as error:
            why.append(error)
            continue
        if (one.answer if one.kind == "user" else f"n{number}") in shown:
            return longer
    raise AssertionError(f"{chat.name!r} shows no form of {one}: {why}")


def incremental(chat: ChatEncoder, conversations: list[list], played: Sequence[Round]) -> list[int]:
    """Ids as a turn loop puts them together, where the model says what stands in the whole conversation."""
    text, (stop,) = chat.render(conversations[-1], True), chat.stops
    ids = chat.encode_prompt(conversations[0]).tolist()
    for before, one in zip(conversations, played, strict=False):
        start = len(chat.render(before, True))
        said = chat.tokenizer.encode(text[start : text.index(stop, start)], add_special_tokens=False)
        generated = [*said, chat.stop_token_ids[0]] if one.ended else said
        ids += [*generated, *chat.encode_observation(observation(one), np.array(generated, np.int32)).tolist()]
    return ids


@pytest.mark.parametrize("name", USABLE)
def test_what_each_template_can_do_is_found(name):
    chat = encoder(name)

    assert tuple(kind for kind in KINDS if kind not in chat.report.refused) == USABLE[name]
    assert chat.report.tools_shown == (name in BESIDE_TOOLS)
    beside = chat.showing([CALCULATOR]).report
    assert chat.report.tools_shown == beside.tools_shown
    if beside.tools_shown:
        assert tuple(kind for kind in KINDS if kind not in beside.refused) == BESIDE_TOOLS[name]
        assert {**chat.report.refused, **chat.report.beside_tools} == beside.refused


class TestAppendOnly:
    @pytest.mark.parametrize("name", WHOLE)
    @settings(max_examples=20, deadline=None)
    @given(data=st.data(), question=texts, instruction=st.none() | texts)
    def test_incremental_ids_are_those_of_the_whole_conversation(self, name, data, question, instruction):
        chat = encoder(name)
        played = data.draw(rounds(WHOLE[name]))
        opening = [{"role": "user", "content": question}]
        if instruction is not None and not chat.report.system and name != "mistral_v3":
            opening.insert(0, {"role": "system", "content": instruction})

        conversations = whole_conversation(chat, opening, played)

        assert incremental(chat, conversations, played) == chat.encode_prompt(conversations[-1]).tolist()

    @pytest.mark.parametrize("name", WHOLE_BESIDE_TOOLS)
    @settings(max_examples=20, deadline=None)
    @given(data=st.data(), question=texts)
    def test_so_they_are_with_tools_in_the_prompt(self, name, data, question):
        chat = encoder(name).showing([CALCULATOR])
        played = data.draw(rounds(WHOLE_BESIDE_TOOLS[name]))

        conversations = whole_conversation(chat, [{"role": "user", "content": question}], played)

        assert "calculator" in chat.render(conversations[0], True)
        assert incremental(chat, conversations, played) == chat.encode_prompt(conversations[-1]).tolist()


class TestRewrittenHistory:
    @pytest.mark.parametrize("name", ["qwen3", "deepseekv3", "llama3_1", "gemma3", "mistral_v13"])
    @settings(max_examples=20, deadline=None)
    @given(said=st.lists(st.tuples(texts, texts), min_size=1, max_size=4), shown=texts)
    def test_a_delta_is_the_same_after_any_conversation(self, name, said, shown):
        """Also where the turns before it are shown otherwise now: thinking stripped, white space trimmed."""
        chat = encoder(name)
        context = [{"role": "user", "content": "q"}]
        for answer, reply in said:
            thoughtful = {"role": "assistant", "content": f"<think>\n{answer}\n</think>\n\n {answer} \n"}
            context += [thoughtful, {"role": "user", "content": reply}]
        seen = [{"role": "user", "content": shown}]

        assert find_delta(chat.render, chat.stops, seen, context) == find_delta(chat.render, chat.stops, seen)

    @pytest.mark.parametrize("name", ["qwen3", "deepseekv3"])
    def test_the_stream_is_what_the_model_saw_and_the_whole_differs_where_thinking_was_stripped(self, name):
        chat = encoder(name)
        prompt = [{"role": "user", "content": "How many?"}]
        thinking = "Reason.\n</think>\n\nSeven."
        opened = chat.render(prompt, True)
        said = thinking if opened.endswith("<think>\n") else f"<think>\n{thinking}"
        generated = [*chat.tokenizer.encode(said, add_special_tokens=False), chat.stop_token_ids[0]]
        seen = [{"role": "user", "content": "Sure?"}]

        delta = chat.encode_observation(seen, np.array(generated, np.int32))
        streamed = chat.decode(np.array([*chat.encode_prompt(prompt), *generated, *delta], np.int32), special=True)
        whole = chat.render([*prompt, {"role": "assistant", "content": f"<think>\n{thinking}"}, *seen], True)

        assert streamed.startswith(f"{opened}{said}{chat.stops[0]}")
        assert "Reason." not in whole
        differs = next(at for at, (left, right) in enumerate(zip(streamed, whole, strict=False)) if left != right)
        assert streamed[:differs] == opened.removesuffix("<think>\n")
        assert streamed.endswith(whole[whole.index("Sure?") :])


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "tools", "kind", "reason"),
        [
            ("mistral_v3", False, "user", "different after a system message"),
            ("mistral_v7", True, "user", "moves its tools behind what the model has read"),
            ("mistral_v11", True, "user", "moves its tools behind what the model has read"),
            ("deepseekv3", False, "tool", "different after another tool round"),
            ("deepseekv3", False, "tools", "different after another tool round"),
            ("gemma", False, "tool", "Conversation roles must alternate"),
            ("gemma3", False, "tools", "Conversation roles must alternate"),
        ],
    )
    def test_what_cannot_be_appended_is_refused_by_name(self, name, tools, kind, reason):
        chat = encoder(name).showing([CALCULATOR]) if tools else encoder(name)

        with pytest.raises(ModelError, match=f"takes no observation of role '{kind.removesuffix('s')}': .*{reason}"):
            chat.encode_observation(KINDS[kind], np.array([chat.stop_token_ids[0]], np.int32))

    def test_a_role_that_a_template_refuses_does_not_cost_it_the_others(self):
        """Gemma raises on a system message: no prompt may have one, and users' messages can be appended."""
        chat = encoder("gemma")

        assert "System role not supported" in chat.report.system
        assert "system messages refused" in str(chat.report)
        assert "user" not in chat.report.refused
        with pytest.raises(ModelError, match="System role not supported"):
            chat.encode_prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}])

    def test_what_only_tools_make_wrong_is_said_before_there_are_any(self):
        assert "beside tools, user observations refused: the template moves" in str(encoder("mistral_v7").report)
