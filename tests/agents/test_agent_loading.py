"""Loops by name: what ships, what a run registers, what Python can import; and what each wrong name is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stream_rl.agents import AgentLoop
from stream_rl.agents.loading import Agents
from stream_rl.agents.single_turn import SingleTurnAgent
from stream_rl.errors import AgentLoadError
from stream_rl.slime.function import function_loop

MODULE = """
from stream_rl.agents import AgentLoop
from {types} import Sample

class Mine(AgentLoop):
    async def run(self, sampling_params, **kwargs):
        return None

class NoRun(AgentLoop):
    run = None

class Plain(AgentLoop):
    def run(self, sampling_params, **kwargs):
        return None

class Closed(AgentLoop):
    async def run(self, sampling_params):
        return None

class NoContext:
    async def run(self, sampling_params, **kwargs):
        return None

async def generate(args, sample, sampling_params):
    return sample

async def short(args, sample):
    return sample

async def whole(args, rollout_id, data_source, evaluation=False):
    return []

def plain(args, sample, sampling_params):
    return sample
"""


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agents:
    """A run's loops, one registered as `mine`; the module `my_loops` has all kinds."""
    (tmp_path / "my_loops.py").write_text(MODULE.format(types="stream_rl.slime.types"))
    (tmp_path / "loops_of_slime.py").write_text(MODULE.format(types="slime.utils.types"))
    (tmp_path / "broken_loops.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield Agents({"mine": "my_loops:Mine"}, "single_turn_agent", function_loop)
    sys.modules.pop("my_loops", None)


def test_without_a_name_the_default_is_found(agents: Agents) -> None:
    assert agents.find(None).make is SingleTurnAgent
    assert agents.find(None) is agents.find("single_turn_agent")


def test_the_environments_loop_is_the_turn_loop_itself(agents: Agents) -> None:
    assert agents.find("multi_turn_env").make is None


@pytest.mark.parametrize("name", ["mine", "my_loops:Mine", "my_loops.Mine"])
def test_a_class_is_found_by_its_registered_name_and_by_its_path(agents: Agents, name: str) -> None:
    make = agents.find(name).make
    assert isinstance(make, type)
    assert issubclass(make, AgentLoop)


def test_a_function_becomes_a_loop(agents: Agents) -> None:
    make = agents.find("my_loops.generate").make
    assert make is not None
    assert isinstance(make(None), AgentLoop)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("single_turn", "no agent loop 'single_turn': did you mean 'single_turn_agent'?"),
        ("mien", "no agent loop 'mien': did you mean 'mine'?"),
        ("xyzzy", "give module:Class, or one of mine, single_turn_agent, tool_agent, multi_turn_env"),
        (["mine"], r"agent_name=\['mine'\] must be text"),
        ("absent_loops:Mine", "Python finds no module 'absent_loops'"),
        ("my_loops:Mein", "module 'my_loops' has no 'Mein': did you mean 'Mine'?"),
        ("broken_loops:Mine", "cannot be imported: ZeroDivisionError"),
        ("loops_of_slime:Mine", "environment.slime_imports=true offers what docs/slime.md lists"),
        ("my_loops:NoRun", "must have `async def run"),
        ("my_loops:Plain", "must have `async def run"),
        ("my_loops:Closed", r"its run must take \(self, sampling_params, \*\*kwargs\)"),
        ("my_loops:NoContext", "derive it from AgentLoop"),
        ("my_loops:short", r"must be async def generate\(args, sample, sampling_params\)"),
        ("my_loops:whole", "a function of a whole rollout: give one of a single sample"),
        ("my_loops:plain", "is a function, and must be a class or an async function"),
    ],
)
def test_what_is_no_loop_is_refused_by_name(agents: Agents, name: str, message: str) -> None:
    with pytest.raises(AgentLoadError, match=message):
        agents.find(name)
