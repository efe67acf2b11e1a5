"""How often the world may fail. Budgets hold per turn and per sample; turns record what they spent, for a resume.

Between two tries stands an exponential pause with jitter, so that a service that is down is not hammered by every
sample at the same moment.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from stream_rl.config import EnvironmentConfig
from stream_rl.errors import EnvFatalError, EnvInfraError
from stream_rl.metrics import catalog

__all__ = ["EnvRetries"]

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0


class EnvRetries:
    """The retry budgets of one sample.

    Args:
        config: the limits.
        environment: label of the metric.
        spent: infrastructure errors that the sample's committed turns have recorded.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        environment: str,
        spent: int = 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._environment = environment
        self._sleep = sleep
        self._jitter = jitter
        self._sample = spent
        self.turn = 0

    def turn_completed(self) -> None:
        """The next turn has its own budget."""
        self.turn = 0

    async def spend(self, error: EnvInfraError) -> None:
        """Takes one failure from the budgets and pauses; the caller then tries again.

        Raises:
            EnvFatalError: a budget is spent; the message names it and the error.
        """
        self.turn += 1
        self._sample += 1
        for name, spent in (("max_env_retries_per_turn", self.turn), ("max_env_retries_per_sample", self._sample)):
            if spent > (limit := getattr(self._config, name)):
                catalog.ENV_RETRIES.inc(environment=self._environment, cause=error.cause, outcome="spent")
                raise EnvFatalError(f"environment.{name}={limit} is spent: {error}") from error
        catalog.ENV_RETRIES.inc(environment=self._environment, cause=error.cause, outcome="retried")
        await self._sleep(self.pause())

    def pause(self) -> float:
        """Seconds to wait after the turn's latest failure: doubled each time, half of it random."""
        return min(FIRST_PAUSE * 2.0 ** (self.turn - 1), LONGEST_PAUSE) * (0.5 + 0.5 * self._jitter())
