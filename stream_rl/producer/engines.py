"""What a turn loop needs of whatever generates."""

from __future__ import annotations

from typing import Protocol, Unpack

from stream_rl.engine.generation import Generation, RequestOptions, SamplingParams
from stream_rl.sample import Int32

__all__ = ["Engines"]


class Engines(Protocol):
    """What generates: the fleet, or a test's script."""

    async def generate(
        self, session_id: str, input_ids: Int32, sampling: SamplingParams, **options: Unpack[RequestOptions]
    ) -> Generation:
        """Continues `input_ids` (int32 (p,)); requests of one session go to the engine that holds their prefix."""
