"""How the trainer's ranks end: all with the first one that fails, and with its cause.

    rank 1 is killed ─► rank 0's collective breaks ─► RankLost of rank 0 is heard of ─► the death of rank 1 is noticed
                                                      └────── at most CAUSE_SECONDS, then all are killed ──────┘

A broken collective is reported at once, a death only when the system has noticed it: whoever is heard of first is
seldom who was first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from stream_rl.errors import ProcessDied, RankLost

__all__ = ["all_ranks"]

CAUSE_SECONDS = 10.0
"""What the other ranks get to end by themselves once one has failed."""


async def all_ranks(lives: Sequence[Coroutine[Any, Any, None]], *, patience: float = CAUSE_SECONDS) -> None:
    """Returns when all ranks have ended by themselves; those that have not `patience` seconds after a failure are left.

    Raises:
        ProcessDied: a rank's, with its number, before any
        RankLost: with which the others end on its account.
        Exception: anything else that a rank raised, as it is.
    """
    ranks = [asyncio.create_task(life) for life in lives]
    try:
        await asyncio.wait(ranks, return_when=asyncio.FIRST_EXCEPTION)
        await asyncio.wait(ranks, timeout=patience)
        failures = {number: error for number, rank in enumerate(ranks) if rank.done() and (error := rank.exception())}
    finally:
        for rank in ranks:
            rank.cancel()
        await asyncio.wait(ranks)
    for number, error in sorted(failures.items(), key=lambda failure: isinstance(failure[1], RankLost)):
        if isinstance(error, ProcessDied):
            raise ProcessDied(f"rank {number}: {error}") from error
        raise error
