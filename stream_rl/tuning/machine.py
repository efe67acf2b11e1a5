"""How fast a run's engines and trainer are, in the terms of the simulator."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from stream_rl.config_sections import Settings
from stream_rl.tuning.workload import Workload

__all__ = ["Machine"]


class Machine(Settings):
    """Speeds. An engine that decodes n requests gives each a token every `token_seconds + n * crowd_seconds`."""

    engines: int = Field(1, gt=0)
    """SGLang servers."""
    slots: int = Field(128, gt=0)
    """Requests that one decodes at once; the others wait in its queue."""
    token_seconds: float = Field(0.01, gt=0)
    """Seconds between two tokens of a request that is alone."""
    crowd_seconds: float = Field(0.0005, ge=0)
    """What each request that is decoded at once adds to that."""
    prefill_seconds: float = Field(1 / 15000, ge=0)
    """Seconds of an engine's time for one token that it reads."""
    turn_seconds: float = Field(0.0, ge=0)
    """Seconds of a turn besides decoding, prefill and environment: HTTP, encoding, commit."""
    update_seconds: float = Field(5.0, ge=0)
    """Seconds for which engines and trainer stand still at a weight update."""
    step_seconds: float = Field(0.0, ge=0)
    """Seconds of a training step beside those of its tokens."""
    train_seconds: float = Field(1e-4, ge=0)
    """Seconds of a training step for each generated token."""
    pause_mode: Literal["retract", "in_place", "abort"] = "retract"
    """`engine.pause_mode`; all but in_place read every context anew after an update."""

    def engine_tokens_per_second(self, workload: Workload) -> float:
        """What all engines together can write, the first reading of prompts and observations included."""
        episodes = workload.episodes
        written = float(np.mean([episode.tokens for episode in episodes]))
        read = float(np.mean([episode.prompt + episode.observation.sum() for episode in episodes]))
        decode = (self.token_seconds + self.slots * self.crowd_seconds) / self.slots
        return self.engines / (decode + self.prefill_seconds * read / written)

    def bound(self, workload: Workload, samples: int) -> float:
        """Trained tokens a second that no schedule can exceed, for steps of `samples` samples.

        The slower of engines and trainer works without a pause but for the updates.
        """
        tokens = samples * float(np.mean([episode.tokens for episode in workload.episodes]))
        engines = tokens / self.engine_tokens_per_second(workload)
        trainer = self.step_seconds + tokens * self.train_seconds
        return tokens / (self.update_seconds + max(engines, trainer))
