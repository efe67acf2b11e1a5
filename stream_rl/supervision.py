"""When a dead process is brought back, and when the run must stop instead: the policy, without any process.

A death is forgiven as long as the run makes progress. `limit` deaths of one kind of process without a training step
between them mean that bringing it back does not help, and the run ends with the last death's cause.
"""

from __future__ import annotations

from stream_rl.errors import RepeatedDeaths

__all__ = ["DeathBudget"]


class DeathBudget:
    """Counts deaths by process kind since the last progress."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._step: dict[str, int] = {}
        self._deaths: dict[str, int] = {}

    def spend(self, kind: str, step: int, cause: str) -> None:
        """Records one death of `kind` while the ledger stands at `step`.

        Raises:
            RepeatedDeaths: this was the `limit`-th death of that kind without a step between them.
        """
        if self._step.get(kind) != step:
            self._step[kind] = step
            self._deaths[kind] = 0
        self._deaths[kind] += 1
        if self._deaths[kind] >= self.limit:
            raise RepeatedDeaths(
                f"{kind} died {self.limit} times at step {step} without progress "
                f"(supervision.max_deaths_without_progress={self.limit}); last cause: {cause}"
            )
