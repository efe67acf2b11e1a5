"""Plots of the report that Grafana's dashboards have too, under the same titles, from what the logs know."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stream_rl.metrics.figure import (
    AMBER,
    BINS,
    BLUE,
    COLOURS,
    GREENS,
    GREY,
    PALE_BLUE,
    TEAL,
    Panel,
    Trace,
    axes,
    bars,
    bins_of,
    heat,
    trace,
)
from stream_rl.metrics.labels import LENGTHS
from stream_rl.metrics.run_folder import TRAIN_PARTS, RunRecords, step_seconds

__all__ = ["PANELS", "by_lag"]


def seconds_by_turn(run: RunRecords) -> Panel:
    """Mean seconds of generation and environment, by the turn's place in its episode."""
    places = np.asarray(run.turn_places, np.int64)
    counts = np.maximum(np.bincount(places), 1) if len(places) else np.zeros(0)
    drawn = [
        bars(
            list(range(len(counts))),
            list(np.bincount(places, np.asarray(run.turn_seconds[part])) / counts),
            name,
            colour,
        )
        for part, name, colour in (("generate_seconds", "generate", BLUE), ("env_seconds", "environment", TEAL))
        if len(places)
    ]
    return Panel(
        "Seconds by turn index",
        "Generate that grows with the place: contexts are computed again, the prefix cache is off or too small.",
        drawn,
        {**axes("turn", "seconds"), "barmode": "group", "bargap": 0.2},
    )


def tokens_per_turn(run: RunRecords) -> Panel:
    """Median and 95th percentile of the tokens written in a turn, by its place."""
    written: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for number, turns in enumerate(run.trajectories.values()):
        for turn in turns:
            written[turn.turn][number] += turn.generated
    places = sorted(written)
    return Panel(
        "Tokens per turn",
        f"A turn may have {run.config.rollout.max_turn_len} (rollout.max_turn_len): at it, turns are cut.",
        [
            bars(places, [float(np.percentile(list(written[place].values()), rank)) for place in places], name, colour)
            for rank, name, colour in ((50, "median", BLUE), (95, "95th percentile", PALE_BLUE))
        ],
        {**axes("turn", "tokens"), "barmode": "group", "bargap": 0.2},
    )


def response_lengths(run: RunRecords) -> Panel:
    """The distribution of response lengths over the run, in powers of two."""
    finished = [sample["response_length"] for sample in run.samples if sample["kind"] == "finished"]
    bins = bins_of([int(np.log2(max(length, 1))) for length in finished])
    levels = sorted({level for _, counts in bins for level in counts})
    shares = [[counts[level] / counts.total() for _, counts in bins] for level in levels]
    return Panel(
        "Response length over time",
        "Share of the finished samples by their length. A second band far above the first: runaway answers.",
        [heat([start for start, _ in bins], [f"{2**level:,}" for level in levels], shares, GREENS)],
        axes("finished samples", "tokens, at least", type="category"),
    )


def truncated(run: RunRecords) -> Panel:
    """Share of the ended samples that a limit cut, by the limit."""
    bins = bins_of(
        [sample["stop_reason"] if sample["status"] == "truncated" else "" for sample in run.samples
         if sample["kind"] != "restarted"]
    )  # fmt: skip
    reasons = sorted({reason for _, counts in bins for reason in counts if reason})
    return Panel(
        "Truncated share",
        "Above a tenth, rewards say little of the task: raise the limit that is named.",
        [
            trace(
                [start for start, _ in bins],
                [counts[reason] / counts.total() for _, counts in bins],
                reason,
                colour,
                1.6,
            )
            for reason, colour in zip(reasons, COLOURS, strict=False)
        ],
        {**axes("ended samples", "share", rangemode="tozero", tickformat=".0%"), "showlegend": True},
    )


def sample_lag(run: RunRecords) -> Panel:
    """Mean lag of a trained sample's tokens: each sample counted once."""
    lags_of = run.column("sample_lags")
    return Panel(
        "Sample lag",
        "Each sample counted once. Well under 1 while the trainer waits: raise run_ahead; near max_staleness: less.",
        [
            trace(run.column("step"), [float(np.mean(lags)) for lags in lags_of], "mean", BLUE, 2.2),
            trace(run.column("step"), [float(np.percentile(lags, 95)) for lags in lags_of], "p95", PALE_BLUE, 1.3),
        ],
        axes("step", "versions", rangemode="tozero"),
    )


def token_lag(run: RunRecords) -> Panel:
    """Trained tokens by lag."""
    counts = [{f"lag {lag}": figures["tokens"] for lag, figures in step["by_lag"].items()} for step in run.steps]
    return _stacked(
        run, "Token lag", "Trained tokens by their lag. More and more old ones: a few long episodes hold it back.",
        values=counts, names=[f"lag {lag}" for lag in _lags(run)], unit="tokens",
    )  # fmt: skip


def masked(run: RunRecords) -> Panel:
    """Masked tokens by the length of their response."""
    return _stacked(
        run, "Masked tokens by response length",
        "Too old to carry loss. All in one long bucket: exactly the long episodes are not learned from.",
        values=[step["masked_by_length"] for step in run.steps], names=LENGTHS, unit="tokens",
    )  # fmt: skip


def waits(run: RunRecords) -> Panel:
    """What the trainer waited for."""
    reasons = sorted({reason for step in run.steps for reason in step["wait_reasons"]})
    return _stacked(
        run, "Trainer waits by reason and length",
        "not_enough_complete: rollouts are too slow. lag_rule: the oldest episode sets the pace, raise max_lag.",
        values=[step["wait_reasons"] for step in run.steps], names=reasons, unit="seconds",
    )  # fmt: skip


def train_seconds(run: RunRecords) -> Panel:
    """What the training part of a step is made of."""
    return _stacked(
        run, "Seconds of training", "A tall pack: very many short samples; forward_backward is what counts.",
        values=[{part: step[f"{part}_seconds"] for part in TRAIN_PARTS} for step in run.steps], names=TRAIN_PARTS,
        unit="seconds",
    )  # fmt: skip


def rollout_to_training(run: RunRecords) -> Panel:
    """Seconds of a step over its training seconds."""
    ratios = [step_seconds(step) / max(step["load_seconds"] + step["train_seconds"], 1e-9) for step in run.steps]
    return Panel(
        "Rollout to training time",
        "Seconds of a step over its training seconds. 1: rollouts are always ahead; 3: the trainer idles two thirds.",
        [trace(run.column("step"), ratios, "ratio", AMBER, 1.6)],
        axes("step", "", rangemode="tozero"),
    )


def sibling_waits(run: RunRecords) -> Panel:
    """Seconds from a group's first finished sample to its last, over the run."""
    times: defaultdict[int, list[float]] = defaultdict(list)
    for sample in run.samples:
        if sample["kind"] == "finished":
            times[sample["group"]].append(sample["time"])
    size = run.config.rollout.group_size
    waited = [max(ended) - min(ended) for ended in times.values() if len(ended) == size]
    width = max(1, -(-len(waited) // BINS))
    starts = range(0, len(waited), width)
    return Panel(
        "Wait for siblings",
        "From a group's first finished sample to its last. p95 far above the median: single episodes are much longer.",
        [
            trace(
                starts,
                [float(np.percentile(waited[start : start + width], rank)) for start in starts],
                name,
                colour,
                1.6,
            )
            for rank, name, colour in ((50, "p50", BLUE), (95, "p95", PALE_BLUE))
        ],
        axes("complete groups", "seconds", rangemode="tozero"),
    )


def importance_ratio(run: RunRecords) -> Panel:
    """Mean ratio of the policy to the one that wrote the tokens, by lag."""
    return by_lag(
        run, "ratio_mean", "Importance ratio", "Away from 1 at lag 0: engine and trainer disagree.",
        axes("step", "", tickformat=".1%"),
    )  # fmt: skip


def effective_sample_size(run: RunRecords) -> Panel:
    """Effective share of the trained tokens, by lag."""
    return by_lag(
        run, "effective_sample_size", "Effective sample size", "Below a half: old tokens add noise.",
        axes("step", "", tickformat=".1%"),
    )  # fmt: skip


def by_lag(run: RunRecords, figure: str, title: str, note: str, layout: dict[str, Any]) -> Panel:
    """A figure of the steps, a line for each lag."""
    steps, of_steps = run.column("step"), run.column("by_lag")
    traces = [
        trace(steps, [of_lag.get(lag, {}).get(figure) for of_lag in of_steps], f"lag {lag}", colour, 1.3)
        for lag, colour in zip(_lags(run), COLOURS, strict=False)
    ]
    return Panel(title, note, traces, {**layout, "showlegend": True})


def _stacked(
    run: RunRecords, title: str, note: str, *, values: Sequence[dict[str, float]], names: Sequence[str], unit: str
) -> Panel:  # fmt: skip
    drawn: list[Trace] = [
        bars(run.column("step"), [value.get(name, 0) for value in values], name, colour)
        for name, colour in zip(names, (BLUE, TEAL, AMBER, *COLOURS[3:], GREY), strict=False)
        if any(name in value for value in values)
    ]
    return Panel(title, note, drawn, {**axes("step", unit), "barmode": "stack", "bargap": 0.1, "showlegend": True})


def _lags(run: RunRecords) -> list[str]:
    return sorted(
        {lag for step in run.steps for lag in step["by_lag"]}, key=lambda lag: (lag[0] == ">", int(lag.strip(">")[0]))
    )


PANELS: tuple[Callable[[RunRecords], Panel], ...] = (
    seconds_by_turn, tokens_per_turn, response_lengths, truncated, sample_lag, token_lag, masked, waits, sibling_waits,
    importance_ratio, effective_sample_size, train_seconds, rollout_to_training,
)  # fmt: skip
