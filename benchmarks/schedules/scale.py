"""The workload and the machine that every policy meets, scaled down in time.

Everything keeps the proportions of a run with 128 slots for 256 samples a step, turns of 300 tokens (median),
environment steps of 3 s (median, up to 20 minutes), and a trainer that is faster than the engines by a third.
"""

from __future__ import annotations

from dataclasses import dataclass

from stream_rl.models.tiny_text import CONTEXT_LENGTH
from stream_rl.tuning import GivenWorkload, Machine

ENGINES, SLOTS = 1, 16
GROUPS_PER_STEP, GROUP_SIZE = 8, 4
TRAINER_SHARE = 0.75
"""Seconds that the trainer needs for a token, over those that the engines need."""
SLOWER = 1.25
"""Samples in play over those that would just fill the engines' slots: the others are in their environments."""
TOKENS = 10
"""A token here stands for so many there, and takes so many times as long."""


@dataclass(frozen=True, slots=True)
class Scale:
    """`speed` times faster than the real thing."""

    speed: float
    seed: int

    @property
    def world(self) -> GivenWorkload:
        """Turns, tokens and environment seconds."""
        return GivenWorkload(
            turns_median=6, turns_sigma=0.7, turns_most=30, tokens_median=300 / TOKENS, tokens_sigma=1.0,
            tokens_most=4000 // TOKENS, env_median=3.0 / self.speed, env_sigma=1.5, env_most=1200 / self.speed,
            prompt=1000 // TOKENS, observation=200 // TOKENS, context_most=CONTEXT_LENGTH - 96,
        )  # fmt: skip

    def machine(self, pause_mode: str) -> Machine:
        """Engines and trainer."""
        token = 0.01 * TOKENS / self.speed
        machine = Machine(
            engines=ENGINES, slots=SLOTS, token_seconds=token, crowd_seconds=token / 10,
            prefill_seconds=TOKENS / 15000 / self.speed, update_seconds=5.0 / self.speed,
            pause_mode=pause_mode,  # type: ignore[arg-type]
        )  # fmt: skip
        engines = machine.engine_tokens_per_second(self.world.workload(self.seed, GROUP_SIZE))
        return machine.model_copy(update={"train_seconds": TRAINER_SHARE / engines})

    @property
    def concurrency(self) -> int:
        """Samples in play."""
        episodes = self.world.workload(self.seed, GROUP_SIZE).episodes
        machine = self.machine("in_place")
        decoding = sum(one.tokens for one in episodes) * (machine.token_seconds + SLOTS * machine.crowd_seconds)
        acting = sum(float(one.env_seconds[:-1].sum()) for one in episodes)
        return int(SLOWER * ENGINES * SLOTS * (1 + acting / decoding))
