"""What becomes a tool, and what is said of what does not."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tool_fixtures import HERE, add, slow_echo

from stream_rl.envs.base import ResumeClass
from stream_rl.errors import ActionError, ConfigError
from stream_rl.tools.settings import ToolAgentSettings, ToolSettings
from stream_rl.tools.tool import ToolResult, function_tool, load_tool, make_tool


def test_a_function_is_described_by_its_signature_and_docstring():
    tool = function_tool(add)

    assert tool.schema == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two whole numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the first"},
                    "b": {"type": "integer", "description": "the second"},
                },
                "required": ["a"],
            },
        },
    }
    assert tool.resume is None


def test_a_class_is_a_tool_with_a_state_that_comes_back_as_it_says():
    for name, called, resume in (
        ("Counter", "counter", ResumeClass.RESTART),
        ("ReplayedCounter", "counter", ResumeClass.REPLAY),
        ("SnapshotCounter", "counter", ResumeClass.SNAPSHOT),
    ):
        tool = load_tool(ToolSettings(path=f"{HERE}:{name}", config={"start": 5}))
        assert (tool.name, tool.resume) == (called, resume)
        assert tool.open(type("Sample", (), {"label": 1})).value == 5
        assert set(tool.schema["function"]["parameters"]["properties"]) == {"by"}


def test_the_tools_of_the_docs_are_tools(monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "tools-for-agents.md").read_text()
    module = ModuleType("tools_of_the_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], module.__dict__)

    search = load_tool(ToolSettings(path="tools_of_the_docs:search"))
    notebook = load_tool(ToolSettings(path="tools_of_the_docs:Notebook", config={"pages": 2}))
    assert search.refusal({"query": "q", "limit": 2}) is None
    assert (notebook.name, notebook.resume) == ("notebook", ResumeClass.SNAPSHOT)
    first, second = notebook.open(None), notebook.open(None)
    assert [first.call("a"), first.call("b")] == ["a", "a\nb"]
    second.load_state_dict(first.state_dict())
    with pytest.raises(ActionError, match="full"):
        second.call("c")


def test_arguments_are_checked_by_the_schema():
    tool = function_tool(add)
    assert tool.refusal({"a": 1, "b": 2}) is None
    assert "'a' is a required property" in tool.refusal({"b": 2})
    assert "'one' is not of type 'integer'" in tool.refusal({"a": "one"})

    assert function_tool(slow_echo).refusal({"text": None}) is None
    given = make_tool("t", "", {"type": "object", "properties": {"n": {"enum": [1, 2]}}}, lambda _: None)
    assert "3 is not one of [1, 2]" in given.refusal({"n": 3})


def test_results_become_text():
    assert ToolResult.of("as it is") == ToolResult("as it is")
    assert ToolResult.of({"n": np.float32(0.5), "l": [1, None]}).text == '{"n":0.5,"l":[1,null]}'
    assert ToolResult.of("half \ud800").text == "half ?"
    with pytest.raises(TypeError):
        ToolResult.of(object())


@pytest.fixture
def broken() -> str:
    """A module of things that are no tools."""
    module = ModuleType("broken_tools")
    exec(
        "class NoCall:\n    pass\n"
        "def no_docs(a: int): return a\n"
        "def no_types(a):\n    '''Does.\n\n    Args:\n        a: x\n    '''\n"
        "value = 5\n",
        module.__dict__,
    )
    sys.modules[module.__name__] = module
    yield module.__name__
    del sys.modules[module.__name__]


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ("{}", "must be module:name"),
        ("no_such_module_at_all:f", "Python finds no module 'no_such_module_at_all'"),
        ("{}:nothing", "has no 'nothing'"),
        ("{}:value", "is no function and no class"),
        ("{}:NoCall", r"needs a method call\(self"),
        ("{}:no_docs", "annotate its arguments and describe each"),
        ("{}:no_types", "annotate its arguments and describe each"),
        ({"path": "{}:no_docs", "parameters": {"type": "sum"}}, "no JSON schema"),
    ],
)
def test_what_is_no_tool_is_named(broken, tool, reason):
    tree = {"path": tool} if isinstance(tool, str) else tool
    with pytest.raises(ConfigError, match=reason):
        load_tool(ToolSettings(**{**tree, "path": tree["path"].format(broken)}))


def test_a_name_that_a_model_cannot_write_is_refused():
    with pytest.raises(ConfigError, match="letters, digits"):
        make_tool("two words", "", {}, lambda _: None)


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({}, r"args\.tools: Field required"),
        ({"tools": []}, r"args\.tools: List should have at least 1 item"),
        ({"tools": [{}]}, r"args\.tools\.0: give either path"),
        ({"tools": [{"mcp": {}}]}, r"args\.tools\.0\.mcp: give either command or url"),
        ({"tools": ["a:b"], "parser": "llama"}, r"args\.parser: Input should be 'hermes' or 'llama3_json'"),
        ({"tools": ["a:b"], "tool_time_out": 3}, r"args\.tool_time_out: Extra inputs"),
    ],
)
def test_wrong_settings_are_named(tree, reason):
    with pytest.raises(ConfigError, match=reason):
        ToolAgentSettings.within("args", tree)
