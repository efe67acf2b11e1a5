"""The context's own rules, without a turn loop: `drive` answers a loop as the turn loop would."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream_rl.agents import AgentContext, AgentLoop, Answer, current_context
from stream_rl.agents.context import Surroundings
from stream_rl.agents.handover import Handover, Pause
from stream_rl.agents.run import AgentRun
from stream_rl.envs.base import EnvSample
from stream_rl.errors import EnvFatalError, EnvInfraError

ANSWER = Answer("a", np.array([7, 8], np.int32), np.zeros(2, np.float32))


async def call(function: Any) -> Any:
    answer = function()
    return await answer if asyncio.iscoroutine(answer) else answer


def context(handover: Handover | None = None) -> AgentContext:
    chat = SimpleNamespace(decode=lambda ids, special=False: " ".join(map(str, ids)))
    around = Surroundings(EnvSample("q"), [], SimpleNamespace(), {"temperature": 1.0}, chat, call)  # type: ignore[arg-type]
    return AgentContext(around, handover or Handover())


async def drive(run: Any, answers: int = 0, results: dict[int, Any] | None = None) -> tuple[list[Pause], AgentRun]:
    """The pauses of a loop whose `run(self)` this is, given so many answers."""

    class Loop(AgentLoop):
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            return await run(self.context)

    handover = Handover(results)
    mine = context(handover)
    driven = AgentRun(Loop(mine), mine, handover)
    pauses = [await driven.start({})]
    for _ in range(answers):
        pauses.append(await driven.go_on(ANSWER))
    return pauses, driven


async def test_what_is_observed_and_earned_is_handed_over_with_the_next_answer_asked_for() -> None:
    async def run(context: AgentContext) -> float:
        context.observe({"role": "user", "content": "first"})
        await context.generate({"role": "user", "content": "second"})
        context.reward(0.5)
        context.reward(0.25)
        context.parse_failure()
        await context.generate()
        return 1.0

    pauses, _ = await drive(run, answers=2)
    assert [[message["content"] for message in pause.observed] for pause in pauses] == [["first", "second"], [], []]
    assert [(p.reward, p.parse_failures, p.done) for p in pauses] == [(0, 0, False), (0.75, 1, False), (1.0, 0, True)]


async def test_the_context_is_found_inside_the_loop_and_the_tasks_that_it_starts() -> None:
    found = []

    async def deeper() -> None:
        found.append(current_context())

    async def run(context: AgentContext) -> None:
        await asyncio.gather(deeper(), deeper())
        found.append(context)
        await context.generate()

    _, driven = await drive(run)
    assert found[0] is found[1] is found[2]
    assert await driven.cancel(1.0)
    with pytest.raises(LookupError):
        current_context()


async def test_calls_at_the_same_time_are_told_apart_by_their_order() -> None:
    async def slow(name: str) -> str:
        for _ in range(3 - len(name)):
            await asyncio.sleep(0)
        return name

    async def run(context: AgentContext) -> None:
        await asyncio.gather(context.once(slow, "a"), context.once(slow, "bb"))
        await context.generate()

    results: dict[int, Any] = {}
    await drive(run, results=results)
    assert results == {0: "a", 1: "bb"}


async def test_a_recorded_result_spares_the_call_and_is_what_json_keeps_of_it() -> None:
    called, seen = [], []

    async def run(context: AgentContext) -> None:
        seen.append(await context.once(lambda: called.append(1) or {"pair": (1, 2)}))
        await context.generate()

    results: dict[int, Any] = {}
    for _ in range(2):
        await drive(run, results=results)
    assert (len(called), seen) == (1, [{"pair": [1, 2]}] * 2)


async def test_a_dataclass_is_recorded_by_its_fields() -> None:
    async def run(context: AgentContext) -> None:
        await context.once(lambda: Pause(reward=0.5))
        await context.generate()

    results: dict[int, Any] = {}
    await drive(run, results=results)
    assert results == {0: {"observed": [], "reward": 0.5, "parse_failures": 0, "done": False}}


async def test_conversations_in_token_ids_must_go_on_from_what_was_said() -> None:
    async def run(context: AgentContext) -> None:
        await context.generate_from([1, 2])
        await context.generate_from([1, 2, 7, 8, 3])
        await context.generate_from([1, 2, 7, 9, 3])

    pauses, driven = await drive(run, answers=1)
    assert [pause.observed.tolist() for pause in pauses] == [[1, 2], [3]]  # type: ignore[union-attr]
    with pytest.raises(EnvFatalError, match=r"must begin with the 7 tokens .* '1 2 7 8 3 7 8', not '1 2 7 9 3'"):
        await driven.go_on(ANSWER)


async def mixed(context: AgentContext) -> None:
    await context.generate()
    await context.generate_from([1])


async def twice_at_once(context: AgentContext) -> None:
    await asyncio.gather(context.generate(), context.generate())


async def observes_text(context: AgentContext) -> None:
    await context.generate("higher")  # type: ignore[arg-type]


async def no_json(context: AgentContext) -> None:
    await context.once(object)


async def no_number(context: AgentContext) -> None:
    await context.once(lambda: {"score": float("nan")})


async def half_a_character(context: AgentContext) -> None:
    await context.generate({"role": "user", "content": "a\udc80"})


async def gives_up_and_asks_again(context: AgentContext) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(context.generate(), 0.001)
    await context.generate()


async def gives_up_and_returns(context: AgentContext) -> float:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(context.generate(), 0.001)
    return 1.0


async def fails_beside_its_generate(context: AgentContext) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise EnvInfraError("down")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(context.generate())
            group.create_task(fail())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


async def leaves_the_program(context: AgentContext) -> None:
    await context.generate()
    sys.exit(1)


async def no_reward(context: AgentContext) -> None:
    context.reward(float("nan"))


async def returns_text(context: AgentContext) -> str:
    await context.generate()
    return "good"


async def cancels_itself(context: AgentContext) -> None:
    await context.generate()
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (mixed, EnvFatalError, "began with generate must go on with it"),
        (twice_at_once, EnvFatalError, "one answer at a time"),
        (observes_text, EnvFatalError, "a loop observes chat messages, mappings with role and content, not 'higher'"),
        (no_json, EnvFatalError, "once keeps plain JSON"),
        (no_number, EnvFatalError, "once keeps plain JSON, .* nan"),
        (half_a_character, EnvFatalError, "a loop observes chat messages"),
        (fails_beside_its_generate, EnvInfraError, "down"),
        (leaves_the_program, EnvInfraError, "SystemExit: 1"),
        (no_reward, EnvFatalError, "a reward must be a finite number, not nan"),
        (returns_text, EnvFatalError, "must return a finite number or None, not 'good'"),
        (cancels_itself, EnvInfraError, "cancelled from inside"),
    ],
)
async def test_what_a_loop_must_not_do(run: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await drive(run, answers=1)


@pytest.mark.parametrize("run", [gives_up_and_asks_again, gives_up_and_returns])
async def test_an_answer_that_a_loop_did_not_wait_for_is_not_the_next_ones(run: Any) -> None:
    """Else every later answer would be a turn late, and observations would stand before what they answer."""
    _, driven = await drive(run)
    await asyncio.sleep(0.01)
    with pytest.raises(EnvFatalError, match="a loop must wait until its answer comes"):
        await driven.go_on(ANSWER)


async def test_a_loop_that_swallows_its_cancellation_ends_when_it_asks_again() -> None:
    async def run(context: AgentContext) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await context.generate()
        await context.generate()

    _, driven = await drive(run)
    assert await driven.cancel(5)


async def test_a_loop_that_does_not_end_when_it_is_cancelled_is_left_behind() -> None:
    stop = asyncio.Event()

    async def run(context: AgentContext) -> None:
        try:
            await context.generate()
        finally:
            await stop.wait()

    _, driven = await drive(run)
    assert not await driven.cancel(0.01)
    stop.set()
