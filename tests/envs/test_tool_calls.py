"""What is a call and what is none, in each of the ways in which models write them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_rl.envs.tool_calls import PARSERS, ToolCall, Undecodable

hermes, llama = PARSERS["hermes"], PARSERS["llama3_json"]
plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
calls = st.lists(
    st.builds(ToolCall, st.text(min_size=1), st.dictionaries(st.text(), plain_json, max_size=3)), min_size=1, max_size=3
)


def written(call: ToolCall, key: str) -> str:
    return json.dumps({"name": call.name, key: call.arguments})


@given(calls)
@settings(max_examples=40)
def test_what_is_written_is_read_in_order(made):
    tagged = "Hm.</think>\n" + "\n".join(f"<tool_call>\n{written(call, 'arguments')}\n</tool_call>" for call in made)
    assert hermes(tagged) == made
    separated = "; ".join(written(call, "parameters") for call in made)
    assert llama(f"</think>{separated}") == llama(f"Well.</think> <|python_tag|>{separated}") == made


@given(st.text(alphabet='{}[]<>"/:,;\\ntol_calfe 0name', max_size=60))
def test_no_text_breaks_a_parser_and_no_opened_call_vanishes(text):
    assert len(hermes(text)) == text.count("<tool_call>")
    assert isinstance(llama(text), list)
    assert llama(f"<|python_tag|>{text.strip()}") or not text.strip()


@pytest.mark.parametrize(
    ("text", "parser"),
    [
        ("The sum is 4.", hermes),
        ('{"name": "add", "arguments": {}}', hermes),
        ("<think>Maybe <tool_call>{}</tool_call>?</think>No: 4.", hermes),
        ("The sum is 4.", llama),
        ('{"answer": 4}', llama),
        ("{4}", llama),
    ],
)
def test_a_plain_answer_is_no_call(text, parser):
    assert parser(text) == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("add(1, 2)", "no JSON"),
        ('{"name": "add", "arguments": {"a": 1}', "no JSON"),
        ('{"name": "add", "arguments": {"a": NaN}}', "NaN is no JSON value"),
        ('{"name": "add", "arguments": {"a": "\\ud800"}}', "surrogates"),
        ("[" * 100_000, "no JSON"),
        ('{"arguments": {}}', '"name"'),
        ('{"name": 5, "arguments": {}}', '"name"'),
        ("[1]", '"name"'),
        ('{"name": "add", "arguments": [1, 2]}', "must be a JSON object"),
        ('{"name": "add", "arguments": "a=1"}', "are no JSON"),
        ('{"name": "add", "arguments": {}} {"name": "add", "arguments": {}}', "more than one"),
        ("", "no JSON"),
    ],
)
def test_what_was_meant_as_a_call_says_why_it_is_none(body, reason):
    (found,) = hermes(f"<tool_call>{body}</tool_call>")
    assert isinstance(found, Undecodable)
    assert reason in found.reason


def test_a_good_call_beside_a_bad_one_is_read():
    found = hermes('<tool_call>{oops}</tool_call><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    assert isinstance(found[0], Undecodable)
    assert found[1] == ToolCall("add", {"a": 1})
    unclosed, closed = hermes('<tool_call>{oops\n<tool_call>{"name": "add"}</tool_call>')
    assert isinstance(unclosed, Undecodable)
    assert closed == ToolCall("add", {})
    first, second = llama('{"name": "add", "parameters": {"a": 1}} and more')
    assert first == ToolCall("add", {"a": 1})
    assert isinstance(second, Undecodable)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "add", "arguments": {"code": "a\nb"}}',
        '<tool_call>{"name": "add", "arguments": "{\\"code\\": \\"a\\\\nb\\"}"}</tool_call>',
        '<tool_call>{"name": "add", "parameters": {"code": "a\nb"}}</tool_call>',
    ],
)
def test_habits_of_models_are_understood(text):
    """No closing tag at the end, arguments as text, a line break inside of a string, the other family's key."""
    assert hermes(text) == [ToolCall("add", {"code": "a\nb"})]
