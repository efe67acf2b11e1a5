"""How long the buffer has had no room for this producer's next work. Nothing is dropped meanwhile: it waits."""

from __future__ import annotations

import time
from collections.abc import Callable

from stream_rl.errors import BufferFull
from stream_rl.metrics import catalog

__all__ = ["RoomWatch"]


class RoomWatch:
    """Counts the seconds of such waits, and ends one in which nothing at all goes on.

    Args:
        timeout: seconds without a sample to play before `BufferFull`; setting `buffer.room_timeout`.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._limit = ""
        self._since = self._looked = clock()

    def looked(self, limit: str, *, progress: bool) -> None:
        """Takes note of one call for work.

        Args:
            limit: what kept work back, as `TrajectoryBuffer.waits_for` says; empty when nothing did.
            progress: whether there is a sample to play all the same.

        Raises:
            BufferFull: nothing could be played for `timeout` seconds; it names the limit.
        """
        now = self._clock()
        if self._limit:
            catalog.ROOM_WAIT_SECONDS.inc(now - self._looked, limit=self._limit)
        # A limit on leased samples is only ever full of samples that others play.
        if not limit or progress or limit == "buffer.max_leased_samples":
            self._since = now
        if now - self._since > self._timeout:
            raise BufferFull(
                f"no room for another group within buffer.room_timeout={self._timeout:g} s: raise {limit}, or keep "
                "less by trainer.checkpoint_every or trainer.checkpoints_kept"
            )
        self._limit, self._looked = limit, now
