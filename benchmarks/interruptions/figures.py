"""What rounds say: a round's figures, their table, and the claims that the choice of a default rests on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from measures.bars import Bar, ratios
from rich.table import Table

from interruptions.checkpoints import Checkpoints
from interruptions.playing import INTERRUPTING, NONE, TURN_BOUNDARY, Played

__all__ = ["Figures", "Medians", "Rounds", "bars_of", "figures_of", "medians", "table"]

JUDGED = 16
"""Sequences of a round that are compared with a fresh forward, at most."""
EXACT = 1e-4


@dataclass(frozen=True, slots=True)
class Figures:
    """One round of one policy.

    seconds             that it took
    tokens_per_second   generated
    updates             how many there were
    serving_seconds     from an update's start until a request that comes after it has a token, mean
    prefilled_again     tokens, for each update
    error_mean, error_max   |log-prob of the engine - of a fresh forward|, of what was written after an update inside
                        its sequence; of every token where no sequence is interrupted
    moved_mean          how far the update moved the log-probs of the same tokens
    judged              how many tokens those are
    """

    seconds: float
    tokens_per_second: float
    updates: int
    serving_seconds: float
    prefilled_again: float
    error_mean: float
    error_max: float
    moved_mean: float
    judged: int


@dataclass(frozen=True, slots=True)
class Medians:
    """Over the rounds of one policy; of the largest errors the largest.

    of_undisturbed  tokens/s, of those without updates in the same round
    lost_seconds    of generation, for each update: what is missing in tokens, at the pace without updates
    of_moved        error_mean / moved_mean
    """

    tokens_per_second: float
    of_undisturbed: float
    lost_seconds: float
    serving_seconds: float
    prefilled_again: float
    error_mean: float
    error_max: float
    of_moved: float


Rounds = Mapping[str, Sequence[Figures]]
"""By policy; round n of one was played beside round n of the others."""


def figures_of(played: Played, policy: str, checkpoints: Checkpoints) -> Figures:
    """Judges some of the sequences, evenly spread over the round."""
    interrupted = policy in INTERRUPTING
    crossing = [one for one in played.sequences if len(set(one.versions)) > interrupted]
    chosen = crossing[:: math.ceil(len(crossing) / JUDGED) or 1]
    error, moved = checkpoints.judge(chosen, interrupted=interrupted)
    updates = len(played.serving)
    return Figures(
        seconds=played.seconds,
        tokens_per_second=played.written / played.seconds,
        updates=updates,
        serving_seconds=statistics.fmean(played.serving) if updates else 0.0,
        prefilled_again=played.prefilled_again / max(updates, 1),
        error_mean=float(np.mean(error)) if len(error) else 0.0,
        error_max=float(np.max(error, initial=0.0)),
        moved_mean=float(np.mean(moved)) if len(moved) else 0.0,
        judged=len(error),
    )


def medians(rounds: Rounds, policy: str) -> Medians:
    """Of all rounds of one policy."""
    played = rounds[policy]
    shares = _shares(rounds, policy)
    lost = [(1 - share) * one.seconds / max(one.updates, 1) for share, one in zip(shares, played, strict=True)]
    return Medians(
        tokens_per_second=statistics.median(one.tokens_per_second for one in played),
        of_undisturbed=statistics.median(shares),
        lost_seconds=statistics.median(lost),
        serving_seconds=statistics.median(one.serving_seconds for one in played),
        prefilled_again=statistics.median(one.prefilled_again for one in played),
        error_mean=statistics.median(one.error_mean for one in played),
        error_max=max(one.error_max for one in played),
        of_moved=statistics.median(_of_moved(played)),
    )


def table(name: str, rounds: Rounds) -> Table:
    """A row for each policy."""
    columns = ("policy", "tokens/s", "of none", "lost, s", "serving again, s", "prefilled again", "|Δ log-prob| mean",
               "max", "/ moved")  # fmt: skip
    shown = Table(*columns, title=f"{name} contexts: medians over rounds; seconds and prefilled tokens of an update")
    for policy in rounds:
        row = medians(rounds, policy)
        cost = (f"{row.lost_seconds:.2f}", f"{row.serving_seconds:.2f}", f"{row.prefilled_again:,.0f}")
        shown.add_row(
            policy,
            f"{row.tokens_per_second:,.0f}",
            f"{row.of_undisturbed:.2f}",
            *(("",) * len(cost) if policy == NONE else cost),
            f"{row.error_mean:.1e}",
            f"{row.error_max:.1e}",
            f"{row.of_moved:.1%}",
        )
    return shown


def bars_of(contexts: Mapping[str, Rounds]) -> list[Bar]:
    """Every way but in_place is exact, and retract is no slower than the other exact ones."""
    bars = []
    for name, rounds in contexts.items():
        for policy, played in rounds.items():
            if policy == "in_place":
                bars.append(Bar(f"{name}, {policy}: |Δ log-prob| / what the update moved", _of_moved(played), 0.1))
            else:
                errors = [one.error_max * 1e6 for one in played]
                bars.append(Bar(f"{name}, {policy}: |Δ log-prob| max, in millionths", errors, most=EXACT * 1e6))
        for other in ("abort", TURN_BOUNDARY):
            if "retract" in rounds and other in rounds:
                rates = ([one.tokens_per_second for one in rounds[policy]] for policy in ("retract", other))
                bars.append(Bar(f"{name}: tokens/s, retract / {other}", ratios(*rates), 1.0))
    return bars


def _shares(rounds: Rounds, policy: str) -> list[float]:
    return ratios(*([one.tokens_per_second for one in rounds[which]] for which in (policy, NONE)))


def _of_moved(played: Sequence[Figures]) -> list[float]:
    return [one.error_mean / one.moved_mean if one.moved_mean else 0.0 for one in played]
