"""A producer that lives and does nothing: by its heartbeats, as the buffer counts them.

    loading ─► heard ─► beats on                    no death of its own is seen: its process is there, its event loop
                 └────► silent ─► ProcessDied       stands, most likely in an async method of an environment that blocks

Before its first heartbeat a producer loads a dataset and a tokenizer, however long that takes. Afterwards only silence
that was looked at counts: while Redis is away nobody can be heard.
"""

from __future__ import annotations

import asyncio

from stream_rl.buffer import TrajectoryBuffer
from stream_rl.errors import ProcessDied

__all__ = ["patience", "until_silent"]

LEASES = 3
LEAST_SECONDS = 10.0


def patience(lease_seconds: float) -> float:
    """Seconds beyond a producer's lease for which it may be silent: in all some leases, for short ones some more."""
    return max((LEASES - 1) * lease_seconds, LEAST_SECONDS)


async def until_silent(buffer: TrajectoryBuffer, producer_id: str, *, seconds: float, pause: float) -> None:
    """Watches one life of a producer, from its start.

    Args:
        buffer: knows whose heartbeat has not run out.
        producer_id: its name; those of earlier lives may still be heard for a while, and are not meant.
        seconds: how long its heartbeat may have run out for.
        pause: seconds between two looks.

    Raises:
        ProcessDied: it was heard, and then not for so long. Never ends otherwise.
    """
    earlier, heard, silent = await _lives(buffer, producer_id), False, 0.0
    while silent < seconds:
        await asyncio.sleep(pause)
        if await _lives(buffer, producer_id) - earlier:
            heard, silent = True, 0.0
        elif heard:
            silent += pause
    raise ProcessDied(
        f"no heartbeat for {seconds:g} s beyond producer.lease_seconds: its event loop hangs, as in an async method of "
        "an environment that blocks"
    )


async def _lives(buffer: TrajectoryBuffer, producer_id: str) -> set[str]:
    return {life for life in await buffer.live_producers() if life.rpartition(":")[0] == producer_id}
