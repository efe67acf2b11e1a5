"""What goes wrong around the buffer, as rules of its state machine: silence, clock jumps, kills, lost replies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from buffer_model import Model
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from rewinding_server import RewindingServer

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.errors import BufferUnavailable

PRODUCERS = ("a", "b", "c")


class Faults(RuleBasedStateMachine):
    """Two clients of one run, `one` for producers a and b, `two` for c; each is killed and started again."""

    server: RewindingServer
    name: str
    model: Model
    runner: asyncio.Runner
    one: TrajectoryBuffer
    two: TrajectoryBuffer
    lives: dict[str, int]
    kills: int

    def run(self, call: Any) -> Any:
        return self.runner.run(call)

    def buffer(self, producer: str) -> TrajectoryBuffer:
        return self.two if producer == "c" else self.one

    def holder(self, producer: str) -> str:
        """A client that is killed and started again is another holder, whatever its producer is called."""
        which = "two" if producer == "c" else "one"
        return f"{producer}:{self.lives[which]}"

    @rule(producer=st.sampled_from(PRODUCERS))
    def beat(self, producer: str) -> None:
        self.run(self.buffer(producer).heartbeat(producer, 600))
        self.model.beat(self.holder(producer), 1 / 6)

    @rule(producer=st.sampled_from(PRODUCERS))
    def fall_silent(self, producer: str) -> None:
        self.run(self.buffer(producer).heartbeat(producer, 0))
        self.model.beat(self.holder(producer), 0)

    @rule(forward=st.booleans())
    def the_servers_clock_jumps(self, forward: bool) -> None:
        """By an hour. All that the server compares its clock with is when holders fall silent: those move instead."""
        connection = self.one._connection
        key, hour = connection.key("holders"), 3_600_000
        (known,) = self.run(connection.pipeline(lambda pipe: pipe.zrange(key, 0, -1)))
        by = -hour if forward else hour
        self.run(connection.pipeline(lambda pipe: [pipe.zincrby(key, by, holder) for holder in known]))
        self.model.clock += 1 if forward else -1

    @rule(which=st.sampled_from(["one", "two"]))
    def a_client_is_killed(self, which: str) -> None:
        self.run(getattr(self, which).close())
        setattr(self, which, self.run(TrajectoryBuffer.connect(self.server.url, self.name)))
        self.lives[which] += 1
        for producer in PRODUCERS:
            if self.buffer(producer) is getattr(self, which):
                self.beat(producer)

    @precondition(lambda self: self.kills < 2)
    @rule()
    def the_server_is_killed(self) -> None:
        self.kills += 1
        self.server.kill()
        self.server.start()
        self.model.restart_server()

    def lose_reply(self, buffer: TrajectoryBuffer, call: Any) -> None:
        """The server does what it is asked; the client never hears of it."""
        connection = buffer._connection
        script = connection.script

        async def deaf(name: str, *arguments: Any, **options: Any) -> Any:
            await script(name, *arguments, **options)
            raise BufferUnavailable("the reply was lost")

        connection.script = deaf  # type: ignore[method-assign]
        try:
            with pytest.raises(BufferUnavailable):
                self.run(call)
        finally:
            connection.script = script  # type: ignore[method-assign]
