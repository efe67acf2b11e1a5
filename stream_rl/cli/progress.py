"""What `stream-rl train` shows: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from stream_rl.buffer import RunSnapshot
from stream_rl.config import Config
from stream_rl.metrics.summary import WINDOW

__all__ = ["TrainingProgress"]

LINES_PER_RUN = 50


class TrainingProgress:
    """Three bars: steps, groups of the step being collected, and the mean reward of the last WINDOW steps."""

    def __init__(self, config: Config, console: Console) -> None:
        self.console = console
        self._steps = config.trainer.steps
        self._groups_per_step = config.rollout.groups_per_step
        self._every = max(1, self._steps // LINES_PER_RUN)
        self._rewards: deque[float] = deque(maxlen=WINDOW)
        self._bars = Progress(
            TextColumn("{task.description:>8}"), BarColumn(40), TextColumn("{task.completed:.7g}/{task.total:.7g}"),
            TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=console,
            disable=not console.is_terminal,
        )  # fmt: skip
        self._step_bar = self._bars.add_task("steps", total=self._steps, note="starting")
        self._group_bar = self._bars.add_task("groups", total=self._groups_per_step, note="")
        self._reward_bar = self._bars.add_task("reward", total=1.0, note="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def update(self, snapshot: RunSnapshot, steps: Sequence[Mapping[str, Any]]) -> None:
        """Shows the buffer's state and the steps (lines of steps.jsonl) finished since the last call."""
        self._rewards.extend(step["reward_mean"] for step in steps)
        complete, live = snapshot.complete, snapshot.live
        self._bars.update(self._step_bar, completed=snapshot.ledger_steps, note=_recoveries(snapshot))
        self._bars.update(self._group_bar, completed=min(complete, self._groups_per_step), note=f"{live} live")
        if self._rewards:
            mean = round(self._mean_reward(), 3)
            self._bars.update(self._reward_bar, completed=max(mean, 0), note=f"{mean:.3f} over {WINDOW} steps")
        if not self.console.is_terminal:
            for step in steps:
                if step["step"] % self._every == 0 or step["step"] == self._steps:
                    self.console.print(self._line(step), highlight=False, soft_wrap=True)

    def say(self, line: str) -> None:
        """Prints one event above the bars."""
        self.console.print(line, highlight=False, soft_wrap=True)

    def _mean_reward(self) -> float:
        return sum(self._rewards) / len(self._rewards)

    def _line(self, step: Mapping[str, Any]) -> str:
        difference = step["log_prob_difference"]
        return (
            f"step {step['step']}/{self._steps}  "
            f"reward {step['reward_mean']:.3f} ({WINDOW}-step {self._mean_reward():.3f})  "
            f"turns {step['turns_mean']:.2f}  lag {step['token_lag_mean']:.2f}/{step['group_lag_max']}  "
            f"versions {step['versions_max']}  wait {step['wait_seconds']:.2f}s train {step['train_seconds']:.2f}s  "
            f"|dlogp| {'-' if difference is None else format(difference, '.1e')}"
        )


def _recoveries(snapshot: RunSnapshot) -> str:
    counts = [f"{count} {kind}" for kind, count in snapshot.recoveries.items() if count]
    return f"recovered: {', '.join(counts)}" if counts else ""
