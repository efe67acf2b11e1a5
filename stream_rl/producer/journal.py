"""Where a turn loop's records go: into the buffer for training, nowhere for evaluation.

What a turn adds to metrics and logs is counted here, once its commit has been acknowledged, so that a zombie, a retry
or a resume never counts twice.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from stream_rl.buffer.records import LeasedSample, Outcome, Record, SampleStart
from stream_rl.buffer.trajectory_buffer import TrajectoryBuffer
from stream_rl.errors import CorruptRecord, ImageError, ImageMissing, JournalMismatch, LeaseLost
from stream_rl.metrics import catalog
from stream_rl.metrics.repetition import repetition
from stream_rl.metrics.tracing import spanned
from stream_rl.metrics.turn_log import JsonLines
from stream_rl.multimodal import Picture
from stream_rl.producer.turn_counts import TURN_COUNTS
from stream_rl.sample import StopReason, Turn

__all__ = ["BufferJournal", "Journal", "MemoryJournal"]

RESENDS = 3

T = TypeVar("T")


class Journal(Protocol):
    """Takes what a turn loop records, in order."""

    async def commit(
        self, records: Sequence[Record], outcome: Outcome | None = None, pictures: Sequence[Picture] = ()
    ) -> None:
        """Appends records and the pictures that they name; with an outcome the sample has ended. Then it is durable."""

    async def pictures(self, names: Sequence[str], known: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """What the pictures that a resumed sample has named look like; `known` are those that need not be read."""

    async def restart(self) -> None:
        """Drops every turn: the episode begins again."""

    async def fail(self, reason: StopReason, detail: str) -> None:
        """Ends the sample as failed: never trained, never scored."""


class MemoryJournal:
    """Keeps only the outcome; a sample that failed has none."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None

    async def commit(
        self, records: Sequence[Record], outcome: Outcome | None = None, pictures: Sequence[Picture] = ()
    ) -> None:
        """Remembers the outcome."""
        self.outcome = outcome or self.outcome

    async def pictures(self, names: Sequence[str], known: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """None: nothing was kept, so nothing is resumed."""
        return {}

    async def restart(self) -> None:
        """Nothing was kept."""

    async def fail(self, reason: StopReason, detail: str) -> None:
        """Nothing is kept: the turn loop has said why."""


class BufferJournal:
    """A leased sample's journal in the buffer, with a copy of all its records: a Redis that lost some gets them again.

    `committing` is true while a commit is under way: a drain lets it finish. `lease` is what to give back: a restart
    renews it.

    Every method raises LeaseLost when another producer has the sample, and BufferUnavailable.
    """

    def __init__(
        self, buffer: TrajectoryBuffer, leased: LeasedSample, environment: str, log: JsonLines | None = None
    ) -> None:
        self.committing = False
        self._buffer = buffer
        self.lease = leased.lease
        self._environment = environment
        self._log = log
        self._records: list[Record] = [*([leased.start] if leased.start else ()), *leased.turns]
        self._position = leased.position
        self._pictures: dict[str, bytes] = {}

    async def commit(
        self, records: Sequence[Record], outcome: Outcome | None = None, pictures: Sequence[Picture] = ()
    ) -> None:
        """Appends records, their pictures first, and counts what they hold."""
        self._records += records
        self._pictures |= {picture.name: picture.data for picture in pictures}
        self.committing = True
        try:
            began = time.monotonic()
            if pictures:
                await self._buffer.put_images(picture.data for picture in pictures)
            await self._send(outcome)
            seconds = time.monotonic() - began
        finally:
            self.committing = False
        self._count(records, seconds, ended=outcome is not None)
        if outcome is not None:
            self._count_end()

    async def pictures(self, names: Sequence[str], known: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Reads them from the buffer. Raises ImageError when one is not there: this sample cannot go on."""
        new = [name for name in names if name not in known]
        try:
            self._pictures |= {**known, **(await self._buffer.load_images(new) if new else {})}
        except CorruptRecord as error:
            raise ImageError(f"sample {self.lease.sample_id} cannot be resumed: {error}") from error
        return self._pictures

    async def restart(self) -> None:
        """Keeps the start record alone."""
        if self._position > 1:
            self.lease = await self._fenced(self._buffer.restart(self.lease))
        self._records = self._records[:1]
        self._position = len(self._records)

    async def fail(self, reason: StopReason, detail: str) -> None:
        """Gives the sample up; the buffer refills it."""
        await self._fenced(self._buffer.fail(self.lease, reason, detail))

    @spanned("commit")
    async def _send(self, outcome: Outcome | None) -> None:
        for _ in range(RESENDS):
            try:
                await self._fenced(
                    self._buffer.commit(self.lease, self._position, self._records[self._position :], outcome)
                )
            except ImageMissing as missing:  # a Redis that lost its newest writes may have lost them, too
                catalog.COMMITS_REFUSED.inc(reason="image_missing")
                await self._buffer.put_images(self._pictures[name] for name in missing.names)
            except JournalMismatch as mismatch:
                catalog.COMMITS_REFUSED.inc(reason="journal_mismatch")
                if mismatch.expected >= self._position:
                    raise
                self._position = mismatch.expected
            else:
                self._position = len(self._records)
                return
        raise JournalMismatch(f"sample {self.lease.sample_id}: the journal shrank {RESENDS} times", self._position)

    async def _fenced(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except LeaseLost:
            catalog.COMMITS_REFUSED.inc(reason="lease_lost")
            raise

    def _count(self, records: Sequence[Record], commit_seconds: float, *, ended: bool) -> None:
        first = self._position - len(records)
        turns = [(first + at, record) for at, record in enumerate(records) if isinstance(record, Turn)]
        if self._log is not None:
            self._log.extend(self._line(position, turn, commit_seconds) for position, turn in turns)
        for position, turn in turns:
            catalog.COMMIT_SECONDS.observe(commit_seconds, environment=self._environment)
            if turn.complete or ended:
                TURN_COUNTS.add(self._pieces(position, turn), self._environment)

    def _pieces(self, position: int, turn: Turn) -> list[Turn]:
        """All records of one interaction, newest first: the one at `position`."""
        pieces = [turn]
        while isinstance(record := self._records[position - len(pieces)], Turn) and record.index == turn.index:
            pieces.append(record)
        return pieces

    @property
    def _prompt_length(self) -> int:
        start = self._records[0]
        assert isinstance(start, SampleStart)
        return len(start.prompt_tokens)

    def _line(self, position: int, turn: Turn, commit_seconds: float) -> dict[str, object]:
        sample = self.lease.sample_id
        return {
            "time": time.time(), "sample": str(sample), "group": sample.group, "index": sample.index,
            "attempt": sample.attempt, "turn": turn.index, "complete": turn.complete, "position": position,
            "prompt": self._prompt_length, "generated": len(turn.generated),
            "observation": len(turn.observation), "versions": [str(span.version) for span in turn.spans],
            "generate_seconds": turn.timings.get("generate", 0.0), "queue_seconds": turn.timings.get("queue", 0.0),
            "env_seconds": turn.timings.get("env_step", 0.0), "encode_seconds": turn.timings.get("encode", 0.0),
            "commit_seconds": commit_seconds, "env_retries": turn.env_retries, "reward": turn.reward,
            "finish_reason": turn.finish_reason, "environment": self._environment,
        }  # fmt: skip

    def _count_end(self) -> None:
        generated = [record.generated for record in self._records if isinstance(record, Turn)]
        if generated and (repeated := repetition(np.concatenate(generated))) is not None:
            catalog.REPETITION.observe(repeated, environment=self._environment)
