"""The Lua side: its decisions are scheduling.py's, and its keys are those of keys.py."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from stream_rl.buffer import EmbeddedServer, keys
from stream_rl.buffer.scripts import SCRIPTS, read
from stream_rl.scheduling import Knobs, SchedulingState, choose_batch, may_admit

# Asks the twins about the state in ARGV: batch, run_ahead, max_lag, steps, engine ("" for none), live count, the live
# groups' v0, then the complete ones as group, v0, group, v0, ... oldest first.
DRIVER = (
    read("scheduling")
    + """
local knobs = {batch = tonumber(ARGV[1]), run_ahead = tonumber(ARGV[2]), max_lag = tonumber(ARGV[3])}
local steps, engine, live, ready = tonumber(ARGV[4]), tonumber(ARGV[5]) or false, tonumber(ARGV[6]), {}
for place = 7 + live, #ARGV, 2 do
  ready[#ready + 1] = {group = tonumber(ARGV[place]), v0 = tonumber(ARGV[place + 1])}
end
local oldest = math.huge
for place = 7, 6 + live do oldest = math.min(oldest, tonumber(ARGV[place])) end
local batch = choose_batch(knobs, ready, steps, oldest, function(limit)
  local due = 0
  for place = 7, 6 + live do if tonumber(ARGV[place]) <= limit then due = due + 1 end end
  return due
end)
return {may_admit(knobs, live, steps, engine) and 1 or 0, batch or 0}
"""
)


@pytest.fixture(scope="module")
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    connection = redis.Redis(unix_socket_path=server.url.removeprefix("unix://"))
    yield connection
    connection.close()


@st.composite
def states(draw: st.DrawFn) -> tuple[Knobs, SchedulingState]:
    run_ahead = draw(st.integers(0, 12)) / 4
    knobs = Knobs(draw(st.integers(1, 3)), run_ahead, math.ceil(run_ahead) + draw(st.integers(0, 3)))
    steps = draw(st.integers(0, 8))
    live = dict(enumerate(draw(st.lists(st.integers(max(0, steps - 7), steps), max_size=10))))
    complete = draw(st.sets(st.sampled_from(sorted(live)))) if live else set()
    return knobs, SchedulingState(steps, draw(st.none() | st.integers(0, steps)), live, complete)


@given(given_state=states())
def test_lua_decides_as_python_does(client: redis.Redis, given_state: tuple[Knobs, SchedulingState]) -> None:
    knobs, state = given_state
    ready = sorted(state.complete, key=lambda group: (state.live[group], group))
    engine = "" if state.engine_version is None else state.engine_version
    arguments = [knobs.groups_per_step, knobs.run_ahead, knobs.max_lag, state.steps, engine, len(state.live)]
    pairs = [part for group in ready for part in (group, state.live[group])]
    admitted, batch = client.eval(DRIVER, 0, *arguments, *state.live.values(), *pairs)
    assert bool(admitted) == may_admit(knobs, state)
    assert (tuple(batch) if batch else None) == choose_batch(knobs, state)


SHARED = dict(re.findall(r"^local function (\w+)(.*?)(?=^local function|\Z)", read("state"), re.MULTILINE | re.DOTALL))
"""The functions that scripts share, by name."""


def keys_of(text: str) -> set[str]:
    """The keys that a piece of Lua touches, by the shared functions that it calls as well."""
    code = re.sub("--.*", "", text)
    called = [SHARED[name] for name in SHARED if re.search(rf"\b{name}\(", code)]
    return set(re.findall(r"\bkey_(\w+)", code)).union(*map(keys_of, called))


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_every_script_lists_its_keys_and_arguments(name: str) -> None:
    header, body = re.match(r"#!lua[^\n]*\n((?:--[^\n]*\n)+)(.*)", read(name), re.DOTALL).groups()  # type: ignore[union-attr]
    listed = re.search(r"-- Keys: (.*?)\.\n", header, re.DOTALL)
    assert listed is not None
    names = {key.strip("- \n").removesuffix(":*") for key in listed[1].split(",")}
    assert names <= keys.SINGLE.keys() | keys.FAMILIES.keys()
    assert keys_of(body) == names
    assert ("ARGV" in body) == ("-- ARGV:" in header)


def test_all_keys_of_a_run_share_a_hash_tag() -> None:
    assert keys.prefix("r") == "stream_rl:{r}:"
    for line in keys.lua_names().strip().splitlines():
        assert "KEYS[1]" in line
