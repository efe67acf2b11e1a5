"""What the policies did, as a table and as claims."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from measures.bars import Bar
from rich.table import Table

from schedules.pipeline import Played, summary
from schedules.policies import OURS, Policy

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What nothing can exceed: trained tokens a second, and tokens a second that the engines can write."""

    trained: float
    written: float


def figures_of(played: Played, bounds: Bounds) -> dict[str, float]:
    """One run's figures, beside the bounds."""
    found = summary(played)
    idle = 1 - played.written / played.seconds / bounds.written
    return {**found, "of_bound": found["tokens_per_second"] / bounds.trained, "engine_idle": idle}


def medians(rounds: Sequence[Figures]) -> dict[str, float]:
    """Figure by figure; of lags the largest."""
    return {
        name: max(one[name] for one in rounds) if name.endswith("_max") else statistics.median(o[name] for o in rounds)
        for name in rounds[0]
    }


def table(results: Mapping[str, Sequence[Figures]]) -> Table:
    """One row a policy, medians over the rounds."""
    title = "Trained tokens/s, as a share of the bound and against sync; lags in versions"
    columns = (
        "policy", "tokens/s", "of bound", "x sync", "lag p50", "p99", "max", "in loss", "dropped", "masked",
        "length bias", "engines idle", "trainer idle",
    )  # fmt: skip
    shown = Table(*columns, title=title)
    sync = medians(results["sync"])["tokens_per_second"] if "sync" in results else float("nan")
    for name, rounds in results.items():
        one = medians(rounds)
        shown.add_row(
            name, f"{one['tokens_per_second']:,.0f}", f"{one['of_bound']:.3f}",
            f"{one['tokens_per_second'] / sync:.2f}", f"{one['lag_p50']:.0f}", f"{one['lag_p99']:.0f}",
            f"{one['lag_max']:.0f}", f"{one['trained_lag_max']:.0f}", f"{one['dropped']:.1%}", f"{one['masked']:.1%}",
            f"{one['length_bias']:.3f}", f"{one['engine_idle']:.1%}", f"{one['trainer_idle']:.1%}",
        )  # fmt: skip
    return shown


def claims(results: Mapping[str, Sequence[Figures]], policies: Sequence[Policy]) -> list[Bar]:
    """What must hold of ours."""
    by_name = {policy.name: policy for policy in policies}
    bars: list[Bar] = []
    for name, least in (("ours", 0.93), ("ours, retract", 0.85)):
        if name in results:
            bars.append(Bar(f"{name}: share of the bound", [one["of_bound"] for one in results[name]], least))
    for name, rounds in results.items():
        if name.startswith(OURS.name):
            policy = by_name[name]
            bars += [
                Bar(f"{name}: group lag", [one["group_lag_max"] for one in rounds], most=policy.max_lag),
                Bar(f"{name}: lag in the loss", [one["trained_lag_max"] for one in rounds], most=policy.max_staleness),
                Bar(f"{name}: share dropped", [one["dropped"] for one in rounds], most=0.0),
            ]
    if "ours" in results:
        ours = results["ours"]
        bars += [
            Bar("ours: share masked", [one["masked"] for one in ours], most=0.02),
            Bar("ours: |length bias - 1|", [abs(one["length_bias"] - 1) for one in ours], most=0.03),
        ]
        bars += _against_others(results)
    return bars


def _against_others(results: Mapping[str, Sequence[Figures]]) -> list[Bar]:
    """Every other policy against ours at a bound that is no larger than the lag that it reached itself."""
    bars = []
    ours = [name for name in results if name.startswith(OURS.name) and not name.endswith("retract")]
    for name, rounds in results.items():
        reached = max(one["group_lag_max"] for one in rounds)
        fits = [mine for mine in ours if max(one["group_lag_max"] for one in results[mine]) <= reached]
        if not name.startswith(OURS.name) and fits:
            best = max(fits, key=lambda mine: medians(results[mine])["tokens_per_second"])
            shares = [
                mine["tokens_per_second"] / other["tokens_per_second"]
                for mine, other in zip(results[best], rounds, strict=True)
            ]
            bars.append(Bar(f"{best} / {name} (lag {reached:.0f})", shares, 1.0))
    return bars


def simulator_table(checks: Sequence[Mapping[str, Any]]) -> Table:
    """What the simulator said, and what came."""
    shown = Table(
        "plan", "predicted tokens/s", "measured", "predicted / measured", title="The simulator, fitted to ours"
    )
    for check in checks:
        ratio = check["predicted"] / check["measured"]
        shown.add_row(check["plan"], f"{check['predicted']:,.0f}", f"{check['measured']:,.0f}", f"{ratio:.3f}")
    return shown


def simulator_claims(checks: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Within a tenth."""
    errors = [abs(check["predicted"] / check["measured"] - 1) for check in checks]
    return [Bar(f"simulator, {check['plan']}: error", [e], most=0.1) for check, e in zip(checks, errors, strict=True)]
