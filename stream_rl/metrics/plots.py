"""The report's plots: pure functions from a run's records to Plotly figures as plain data.

A panel's note says what to look for, so that the report can be read without the documentation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from stream_rl.metrics.run_folder import TURN_PARTS, RunRecords
from stream_rl.metrics.summary import WINDOW, moving_mean
from stream_rl.sample import SampleId, StopReason

Trace = dict[str, Any]

BLUE, TEAL, AMBER, ROSE, VIOLET, GREY = "#2563eb", "#0f9f8f", "#e08a00", "#d9365e", "#7c4ddb", "#9aa5b4"
COLOURS = (BLUE, TEAL, AMBER, ROSE, VIOLET, GREY, "#3b3f8f", "#6b8e23", "#a0522d", "#c06c9e")
REASONS = {str(reason): colour for reason, colour in zip(StopReason, COLOURS, strict=True)}
STEP_PARTS = ("wait", "load", "train", "publish", "checkpoint")
PURPLES = ("#f6f4fd", "#d3c5f5", "#9a78e6", "#3f1d8f")
GREENS = ("#f1faf8", "#b5e3dc", "#3fb3a4", "#0a5f55")
BINS = 60


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: `data` and `layout` are what Plotly.newPlot takes."""

    title: str
    note: str
    data: Sequence[Trace]
    layout: Mapping[str, Any]


def panels(run: RunRecords) -> list[Panel]:
    """Every panel of the report, in reading order."""
    return [draw(run) for draw in PANELS]


def reward(run: RunRecords) -> Panel:
    """Mean reward per step, its moving mean, and where the trainer was restarted."""
    rewards = _column(run, "reward_mean")
    restarts = [
        later["step"] for earlier, later in pairwise(run.steps) if later["incarnation"] != earlier["incarnation"]
    ]
    layout = _layout("step", "reward", yaxis={"rangemode": "tozero"})
    layout["shapes"] = [_vertical(step) for step in restarts]
    layout["annotations"] = [_label(step, "trainer restarted") for step in restarts]
    return Panel(
        "Reward",
        "Mean over the step's samples, once per trajectory.",
        [
            _line(run, "reward_mean", "per step", colour="#a9c4f5", width=1.3),
            {**_line(run, "reward_mean", f"mean of {WINDOW} steps", BLUE, 2.6), "y": moving_mean(rewards, WINDOW)},
        ],
        layout,
    )


def turns(run: RunRecords) -> Panel:
    """Turns per trained sample."""
    return Panel(
        "Turns per sample",
        f"An episode may take {run.config.rollout.max_turns} turns (rollout.max_turns).",
        [_line(run, "turns_mean", "mean", TEAL)],
        _layout("step", "turns", yaxis={"rangemode": "tozero"}),
    )


def turn_counts(run: RunRecords) -> Panel:
    """How many turns the finished samples took, as a heat map over the run."""
    bins = _bins([sample["turns"] for sample in run.samples if sample["kind"] == "finished"])
    levels = sorted({turns for _, counts in bins for turns in counts})
    shares = [[counts[level] / counts.total() for _, counts in bins] for level in levels]
    return Panel(
        "Turns per sample over the run",
        "Share of the finished samples by the number of turns they took.",
        [_heat([start for start, _ in bins], levels, shares, GREENS)],
        _layout("finished samples", "turns", yaxis={"dtick": 1}),
    )


def response_length(run: RunRecords) -> Panel:
    """Mean and largest response length, in tokens."""
    return Panel(
        "Response length",
        "Tokens, observations included. A maximum that sits on a limit means cut episodes.",
        [_line(run, "response_length_mean", "mean", BLUE), _line(run, "response_length_max", "max", GREY, 1.3)],
        _layout("step", "tokens", yaxis={"rangemode": "tozero"}),
    )


def lag(run: RunRecords) -> Panel:
    """Lags at consumption against the knobs that bound them."""
    knobs = run.config.scheduling
    layout = _layout("step", "versions", yaxis={"rangemode": "tozero"})
    layout["shapes"] = [_horizontal(knobs.max_staleness, AMBER), _horizontal(knobs.max_lag, ROSE)]
    layout["annotations"] = [_knob("max_staleness", knobs.max_staleness, AMBER), _knob("max_lag", knobs.max_lag, ROSE)]
    if knobs.max_staleness == knobs.max_lag:
        layout["annotations"] = [_knob("max_staleness = max_lag", knobs.max_lag, ROSE)]
    return Panel(
        "Lag when trained",
        "No token in the loss lies above max_staleness, no group above max_lag.",
        [
            _line(run, "token_lag_mean", "token mean", BLUE),
            _steps(_line(run, "trained_token_lag_max", "trained token max", AMBER)),
            _line(run, "group_lag_mean", "group mean", TEAL, 1.3),
            _steps(_line(run, "group_lag_max", "group max", ROSE, 1.3)),
        ],
        layout,
    )


def mixed_versions(run: RunRecords) -> Panel:
    """Share of each step's samples that more than one weight version wrote."""
    shares = [
        step["multi_version_samples"] / (len(step["groups"]) * run.config.rollout.group_size) for step in run.steps
    ]
    layout = _layout("step", "share of samples", yaxis={"rangemode": "tozero", "tickformat": ".0%"})
    return Panel(
        "Trajectories written by several weight versions",
        "Episodes go on while weights change: their spans say which version wrote which token.",
        [{"type": "bar", "x": _column(run, "step"), "y": shares, "name": "share", "marker": {"color": VIOLET}}],
        layout,
    )


def version_counts(run: RunRecords) -> Panel:
    """How many weight versions wrote each trained trajectory, as a heat map over steps."""
    step_of = {group: step["step"] for step in run.steps for group in step["groups"]}
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for sample, logged in run.trajectories.items():
        step = step_of.get(SampleId.parse(sample).group)
        if step is not None:
            counts[step][len({version for turn in logged for version in turn.versions})] += 1
    steps = sorted(counts)
    highest = max((count for counter in counts.values() for count in counter), default=1)
    shares = [[counts[step][level] / counts[step].total() for step in steps] for level in range(1, highest + 1)]
    return Panel(
        "Weight versions per trajectory",
        "Share of the step's trajectories by the number of versions that wrote them.",
        [_heat(steps, list(range(1, highest + 1)), shares, PURPLES)],
        _layout("step", "versions", yaxis={"dtick": 1}),
    )


def throughput(run: RunRecords) -> Panel:
    """Generated tokens per second between the ends of consecutive steps of one incarnation."""
    pairs = [
        (later["step"], later["generated_tokens"] / (later["time"] - earlier["time"]))
        for earlier, later in pairwise(run.steps)
        if later["incarnation"] == earlier["incarnation"] and later["time"] > earlier["time"]
    ]
    rates = [rate for _, rate in pairs]
    steps = [step for step, _ in pairs]
    return Panel(
        "Throughput",
        "Generated tokens of a step's samples over the time since the step before.",
        [
            _trace(steps, rates, "per step", "#a9c4f5", 1.3),
            _trace(steps, moving_mean(rates, WINDOW), f"mean of {WINDOW} steps", BLUE, 2.6),
        ],
        _layout("step", "tokens / s", yaxis={"rangemode": "tozero"}),
    )


def step_seconds(run: RunRecords) -> Panel:
    """Where a step's seconds go."""
    bars = [
        {"type": "bar", "x": _column(run, "step"), "y": _column(run, f"{part}_seconds"), "name": part,
         "marker": {"color": colour}}
        for part, colour in zip(STEP_PARTS, (GREY, VIOLET, BLUE, TEAL, AMBER), strict=True)
    ]  # fmt: skip
    return Panel(
        "Seconds per step",
        "A tall wait means that rollouts are the slower side; none means that the trainer is.",
        bars,
        {**_layout("step", "seconds"), "barmode": "stack", "bargap": 0.1},
    )


def turn_seconds(run: RunRecords) -> Panel:
    """Median and 95th percentile of each part of a turn."""
    parts = [part for part in TURN_PARTS if len(run.turn_seconds.get(part, ()))]
    names = [part.removesuffix("_seconds") for part in parts]
    bars = [
        {"type": "bar", "x": names, "y": [float(np.percentile(run.turn_seconds[part], rank)) for part in parts],
         "name": name, "marker": {"color": colour}}
        for rank, name, colour in ((50, "median", BLUE), (95, "95th percentile", "#a9c4f5"))
    ]  # fmt: skip
    layout = _layout("", "seconds", yaxis={"type": "log", "tickformat": "~s", "dtick": 1})
    return Panel("Seconds of a turn", "From the turn log, on a logarithmic scale.", bars, layout)


def stop_reasons(run: RunRecords) -> Panel:
    """Shares of the reasons why episodes ended, over the run's ended samples in order."""
    bins = _bins([sample["stop_reason"] for sample in run.samples if sample["kind"] != "restarted"])
    common = [reason for reason, _ in sum((counts for _, counts in bins), Counter()).most_common()]
    areas = [
        {"type": "scatter", "mode": "lines", "stackgroup": "all", "name": reason, "x": [start for start, _ in bins],
         "y": [counts[reason] / counts.total() for _, counts in bins],
         "line": {"width": 0.5, "color": REASONS.get(reason, GREY)}, "fillcolor": REASONS.get(reason, GREY)}
        for reason in common
    ]  # fmt: skip
    return Panel(
        "Why episodes end",
        "Shares over the ended samples. A reason with a setting's name was caused by it.",
        areas,
        _layout("ended samples", "share", yaxis={"tickformat": ".0%", "range": [0, 1]}),
    )


def log_prob_difference(run: RunRecords) -> Panel:
    """Mean |engine - trainer| log-prob, on the newest version's samples and on all."""
    return Panel(
        "Engine and trainer log-probs: mean difference",
        "Same weights on both sides: rounding only, about 1e-7 in float32. All samples: the policy has moved on.",
        [
            _line(run, "log_prob_difference", "same weights", TEAL),
            _line(run, "log_prob_difference_all", "all samples", GREY, 1.3),
        ],
        _layout("step", "nats", yaxis={"type": "log", "exponentformat": "power"}),
    )


def entropy(run: RunRecords) -> Panel:
    """Policy entropy and the gradient's norm."""
    return Panel(
        "Entropy and gradient norm",
        "Entropy that falls to zero early ends exploration; a growing norm announces divergence.",
        [_line(run, "entropy", "entropy (nats)", BLUE), _line(run, "grad_norm", "gradient norm", AMBER, 1.3)],
        _layout("step", "", yaxis={"rangemode": "tozero"}),
    )


def clipping(run: RunRecords) -> Panel:
    """Share of tokens whose ratio PPO clipped, and the share masked for their age."""
    masked = [step["masked_tokens"] / max(1, step["generated_tokens"]) for step in run.steps]
    return Panel(
        "Clipped and masked tokens",
        "Clipped: the ratio left its bounds. Masked: generated more than max_staleness versions ago.",
        [
            _line(run, "clip_share", "clipped", VIOLET),
            _trace(_column(run, "step"), masked, "masked", ROSE, 1.3),
        ],
        _layout("step", "share of tokens", yaxis={"rangemode": "tozero", "tickformat": ".1%"}),
    )


PANELS: tuple[Callable[[RunRecords], Panel], ...] = (
    reward, lag, mixed_versions, version_counts, turns, turn_counts, response_length, stop_reasons, throughput,
    step_seconds, turn_seconds, log_prob_difference, entropy, clipping,
)  # fmt: skip


def _bins(values: Sequence[Any]) -> list[tuple[int, Counter[Any]]]:
    """Counts of at most BINS equal stretches of a sequence, each with the place where it starts."""
    width = max(1, -(-len(values) // BINS))
    return [(start, Counter(values[start : start + width])) for start in range(0, len(values), width)]


def _heat(x: Sequence[Any], y: Sequence[Any], shares: Sequence[Sequence[float]], colours: Sequence[str]) -> Trace:
    scale = [list(stop) for stop in zip((0, 0.15, 0.5, 1), colours, strict=True)]
    bar = {"tickformat": ".0%", "thickness": 10, "outlinewidth": 0}
    heat = {"type": "heatmap", "x": x, "y": y, "z": shares, "zmin": 0, "zmax": 1, "xgap": 0.5}
    return {**heat, "colorscale": scale, "colorbar": bar}


def _column(run: RunRecords, name: str) -> list[Any]:
    return [step[name] for step in run.steps]


def _line(run: RunRecords, column: str, name: str, colour: str, width: float = 2.2) -> Trace:
    return _trace(_column(run, "step"), _column(run, column), name, colour, width)


def _trace(x: Iterable[Any], y: Iterable[Any], name: str, colour: str, width: float) -> Trace:
    places = list(x)
    mode = "lines" if len(places) > 1 else "markers"
    line = {"color": colour, "width": width}
    return {"type": "scatter", "mode": mode, "x": places, "y": list(y), "name": name, "line": line}


def _steps(trace: Trace) -> Trace:
    return {**trace, "line": {**trace["line"], "shape": "hv"}}


def _layout(x: str, y: str, yaxis: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}, **(yaxis or {})}}


def _horizontal(y: float, colour: str) -> dict[str, Any]:
    line = {"color": colour, "width": 1.2, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def _vertical(x: float) -> dict[str, Any]:
    line = {"color": ROSE, "width": 1.2, "dash": "dot"}
    return {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x, "line": line}


def _knob(name: str, value: float, colour: str) -> dict[str, Any]:
    text = {"text": f"{name} {value}", "font": {"size": 11, "color": colour}}
    return {**text, "xref": "paper", "x": 1, "xanchor": "right", "y": value, "yanchor": "bottom", "showarrow": False}


def _label(x: float, text: str) -> dict[str, Any]:
    font = {"size": 11, "color": ROSE}
    return {"text": text, "x": x, "yref": "paper", "y": 0.02, "xanchor": "left", "showarrow": False, "font": font}
