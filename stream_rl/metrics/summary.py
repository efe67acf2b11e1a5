"""The figures of one run, recomputed from its own records; docs/summary.md defines each of them.

The logs are the truth: a replayed step writes a second line and the last line of a step counts, a sample's end may be
written twice and its number counts once. Only what no log can know (recoveries, what the buffer still holds, the
evaluation) comes in as `RunFacts`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from stream_rl.metrics.run_folder import Record, ended_samples, surviving_steps, turn_records

__all__ = ["WINDOW", "RunFacts", "lost_turns", "moving_mean", "summarise"]

WINDOW = 5


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the logs cannot tell.

    recoveries       process kind -> times it was brought back
    committed_turns  complete turns that the buffer accepted
    journal_turns    sample id -> complete turns of a sample that has not ended
    eval_reward      mean reward of the evaluation, None without one
    wall_seconds     seconds since the run was first started, pauses excluded
    """

    recoveries: Mapping[str, int] = field(default_factory=dict)
    committed_turns: int = 0
    journal_turns: Mapping[str, int] = field(default_factory=dict)
    eval_reward: float | None = None
    wall_seconds: float = 0.0


def summarise(run_folder: str | Path, facts: RunFacts) -> dict[str, Any]:
    """Computes the run's figures and writes them to summary.json; the file is replaced as a whole.

    Raises:
        OSError: the folder cannot be written.
        ValueError: a log holds a line that is not JSON.
    """
    folder = Path(run_folder)
    steps = surviving_steps(folder / "steps.jsonl")
    summary = {
        **step_figures(steps),
        "committed_turns": facts.committed_turns,
        "lost_turns": _lost_if_logged(folder, facts.journal_turns),
        "eval_reward": facts.eval_reward,
        "wall_seconds": round(facts.wall_seconds, 3),
        "recoveries": dict(facts.recoveries),
    }
    whole = folder / "summary.json.new"
    whole.write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    whole.replace(folder / "summary.json")
    return summary


def step_figures(steps: Sequence[Record]) -> dict[str, Any]:
    """The figures that steps.jsonl alone gives."""
    trained = Counter(group for step in steps for group in step["groups"])
    rewards = [step["reward_mean"] for step in steps]
    windows = moving_mean(rewards, WINDOW)
    return {
        "steps": len(steps),
        "trained_groups": len(trained),
        "trained_twice": sum(1 for times in trained.values() if times > 1),
        "reward_first5": windows[min(WINDOW, len(windows)) - 1] if windows else None,
        "reward_best5": max(windows[min(WINDOW, len(windows)) - 1 :]) if windows else None,
        "reward_last5": windows[-1] if windows else None,
        "generated_tokens": sum(step["generated_tokens"] for step in steps),
        "masked_tokens": sum(step["masked_tokens"] for step in steps),
        "max_versions_in_sample": max((step["versions_max"] for step in steps), default=0),
        "max_group_lag": max((step["group_lag_max"] for step in steps), default=0),
        "max_trained_token_lag": max((step["trained_token_lag_max"] for step in steps), default=0),
    }


def lost_turns(turns: Iterable[Record], ended: Iterable[Record], journal: Mapping[str, int]) -> int:
    """Turns that a producer logged as acknowledged, and that neither an ended sample nor an open journal holds.

    A sample that was restarted ended once with the turns it had then: the longest of its records covers them. A turn
    that was cut and logged in part counts when it is complete.
    """
    held: dict[str, int] = dict(journal)
    for record in ended:
        held[record["sample"]] = max(held.get(record["sample"], 0), record["turns"])
    acknowledged = {(record["sample"], record["turn"]) for record in turns if record["complete"]}
    return sum(1 for sample, turn in acknowledged if turn >= held.get(sample, 0))


def _lost_if_logged(folder: Path, journal: Mapping[str, int]) -> int | None:
    """None without a turn log: nobody has noted what was acknowledged, and 0 would say that nothing was lost."""
    if not any((folder / "turns").glob("*.jsonl")):
        return None
    return lost_turns(turn_records(folder), ended_samples(folder), journal)


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value and up to `window - 1` before it."""
    parts = (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    return [math.fsum(part) / len(part) for part in parts]
