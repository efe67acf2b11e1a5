"""What a turn loop needs of whatever generates."""

from __future__ import annotations

from typing import Protocol

from stream_rl.engine.generation import Generation, ImageInputs, SamplingParams
from stream_rl.sample import Int32

__all__ = ["Engines"]


class Engines(Protocol):
    """What generates: the fleet, or a test's script."""

    async def generate(
        self,
        session_id: str,
        input_ids: Int32,
        sampling: SamplingParams,
        *,
        images: ImageInputs | None = None,
        rid: str | None = None,
        extra_key: str | None = None,
    ) -> Generation:
        """Continues `input_ids` (int32 (p,)); requests of one session go to the engine that holds their prefix."""
