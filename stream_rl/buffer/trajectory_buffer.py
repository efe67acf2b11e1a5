"""The trajectory buffer, and the state machine behind it.

One row is one transition; every transition is one atomic Lua call that may be repeated.

    sample                  by                                  becomes
    ----------------------  ----------------------------------  -------------------------------------------------
    -                       admission, refill                   queued
    queued, returned        lease                               leased (number + 1, a new nonce)
    leased                  commit                              leased, records appended
    leased                  commit with an outcome              finished (completed | truncated)
    leased                  restart                             leased, journal cut to its start record
    leased                  release, or its producer is silent  returned, journal kept
    leased                  fail                                failed; the group gets attempt + 1, queued
    any unfinished          the group is dead-lettered          dropped

    group                   by                                  becomes
    ----------------------  ----------------------------------  -------------------------------------------------
    -                       lease, while admission is open      live: v0 = oldest serving version, next prompt
    live                    its last sibling finishes           complete | filtered (all rewards equal, if asked)
    live                    a failure beyond the refill budget  dead-lettered: finished siblings kept, the rest gone
    dead-lettered           requeue, then the next admission    dead-lettered still; its prompt is a new live group's
    complete                take_step, in the ledger            trained
    trained                 a Redis that lost records of it     trained still; what is missing is queued again, and a
                                                                  replay of its step waits until it is whole
    trained                 checkpoints_kept                    retired: records deleted

What restores a record that Redis lost with its newest writes (a crash before the disk was synced, a replica that was
promoted before it had them). What is left is the run as it was a moment ago; every client knows what it did since.

    lost                    restored by
    ----------------------  -----------------------------------------------------------------------------------------
    turns, start record     the producer: its commit is a JournalMismatch, and it re-sends from its own copy
    outcome, failure,       the producer's next lease: Redis holds more for it than it knows of; those go back to the
      release                 resume queue with the journals they have
    lease (number, nonce)   leased again; the lost one writes nothing. A restart renews the nonce, so one lease names
                              one history that only grows
    admission               admitted again with the same prompts: the cursor went back too; lost leases write nothing
    ledger entry, claim     the trainer, before its next step or retirement (`reassert`): the entry's groups leave
                              whatever became of them since, and their prompts are taken. Admission waits for it
    records of a group      playing them again from what is left, as soon as the ledger is asserted; the group stays
      trained meanwhile       trained. A trainer that has them in hand trains on; one that has not read them yet
                              (RecordsLost), or replays the step, waits. Not when a checkpoint covers the step
    checkpoints_kept        the next one: it retires again from where Redis is
    an engine's version     the trainer, when it asserts its ledger; until then the older one is a lower bound for v0
    an engine               its keeper: one that it does not find here is started again, or joins anew
    heartbeat               the next one; after a restart every producer has a whole term before it counts as silent
    images                  the producer: a commit that names an absent image is refused, and it puts them again
    change of a setting     nobody: the value before it is in force again, and its entry is gone with it
    rules, all of the run   nobody: LedgerMismatch

Invariants: only the newest lease of a sample writes, at the position it names (I4); a group is complete exactly when
group_size siblings finished (I5); a group leaves `ready` in the call that writes it to the ledger (I6); admitted ==
trained + filtered + dead-lettered + live (I7); admission and pull keep scheduling.py's bound (I8).
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Literal

from stream_rl.buffer.connection import Connection
from stream_rl.buffer.images import ImageCalls
from stream_rl.buffer.live_settings import LiveSettingCalls
from stream_rl.buffer.operator_calls import OperatorCalls
from stream_rl.buffer.producer_calls import ProducerCalls
from stream_rl.buffer.prompt_calls import PromptCalls
from stream_rl.buffer.run_calls import RunCalls
from stream_rl.buffer.trainer_calls import TrainerCalls
from stream_rl.config import Config

__all__ = ["TrajectoryBuffer"]


class TrajectoryBuffer(ProducerCalls, TrainerCalls, RunCalls, OperatorCalls, PromptCalls, ImageCalls, LiveSettingCalls):
    """One run's buffer. Made by `connect`; an async context manager that closes its connections."""

    def __init__(self, connection: Connection) -> None:
        ProducerCalls.__init__(self, connection)
        TrainerCalls.__init__(self, connection)
        RunCalls.__init__(self, connection)
        OperatorCalls.__init__(self, connection)
        PromptCalls.__init__(self, connection)
        ImageCalls.__init__(self, connection)
        LiveSettingCalls.__init__(self, connection)

    @classmethod
    async def connect(
        cls, url: str, run: str, *, password: str | None = None, timeout: float = 30.0,
        room_timeout: float | None = None, compression: Literal["none", "zstd"] = "none",
    ) -> TrajectoryBuffer:  # fmt: skip
        """Connects to redis://, rediss:// or unix://; every later call waits up to `timeout` seconds for an answer.

        One that a full Redis refuses waits up to `room_timeout` seconds for room (default: `timeout`). `compression` is
        how this client stores records; it reads either kind.

        Raises:
            BufferUnavailable: no answer, or the login was refused; the message names the URL and the setting.
            ConfigError: the URL cannot be understood, or no Redis is there.
        """
        room = timeout if room_timeout is None else room_timeout
        connection = Connection(
            url, run, password=password, timeout=timeout, room_timeout=room, zstd=compression == "zstd"
        )
        try:
            await connection.check()
        except BaseException:
            await connection.close()
            raise
        return cls(connection)

    @classmethod
    async def of(cls, config: Config, url: str, *, timeout: float | None = None) -> TrajectoryBuffer:
        """`connect` to the run of these settings, with their password; `timeout` replaces `buffer.timeout`."""
        return await cls.connect(
            url,
            config.name,
            password=os.environ.get(config.buffer.password_env),
            timeout=config.buffer.timeout if timeout is None else timeout,
            room_timeout=config.buffer.room_timeout if timeout is None else timeout,
            compression=config.buffer.compression,
        )

    async def close(self) -> None:
        """Closes the connections; the run goes on."""
        await self._connection.close()

    async def __aenter__(self) -> TrajectoryBuffer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
