"""The report's plots: pure functions from a run's records to Plotly figures as plain data.

A panel's note says what to look for, so that the report can be read without the documentation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import cycle, pairwise

import numpy as np

from stream_rl.metrics import plots_dashboards
from stream_rl.metrics.figure import (
    AMBER,
    BLUE,
    COLOURS,
    GREENS,
    GREY,
    PALE_BLUE,
    PURPLES,
    ROSE,
    TEAL,
    VIOLET,
    Panel,
    Trace,
    axes,
    bars,
    bins_of,
    dashed,
    event_name,
    heat,
    or_nothing,
    stepped,
    trace,
    vertical,
)
from stream_rl.metrics.run_folder import STEP_PARTS, TURN_PARTS, RunRecords, versions_of
from stream_rl.metrics.summary import WINDOW, moving_mean
from stream_rl.sample import SampleId, StopReason

__all__ = ["panels", "reward"]

REASONS = {str(reason): colour for reason, colour in zip(StopReason, cycle(COLOURS), strict=False)}


def panels(run: RunRecords) -> list[Panel]:
    """Every panel of the report, in reading order."""
    return [or_nothing(draw(run)) for draw in (*PANELS, *plots_dashboards.PANELS)]


def reward(run: RunRecords) -> Panel:
    """Mean reward per step, its moving mean, and where the trainer was restarted or a setting changed."""
    rewards = run.column("reward_mean")
    restarts = [
        later["step"] for earlier, later in pairwise(run.steps) if later["incarnation"] != earlier["incarnation"]
    ]
    layout = axes("step", "reward", rangemode="tozero")
    events = [(step, "trainer restarted") for step in restarts]
    events += [(change["step"] + 0.5, change["setting"].rpartition(".")[2]) for change in run.changes]
    layout["shapes"] = [vertical(place) for place, _ in events]
    layout["annotations"] = [event_name(text, place) for place, text in events]
    return Panel(
        "Reward",
        "Mean over the step's samples, once per trajectory.",
        [
            _line(run, "reward_mean", "per step", colour=PALE_BLUE, width=1.3),
            {**_line(run, "reward_mean", f"mean of {WINDOW} steps", BLUE, 2.6), "y": moving_mean(rewards, WINDOW)},
            *_held_out(run),
        ],
        layout,
    )


def _held_out(run: RunRecords) -> list[Trace]:
    """What evaluations gave, at the steps whose version they played."""
    known = sorted((one["step"], one["mean_reward"]) for one in run.evaluations if one["step"] is not None)
    if not known:
        return []
    steps, rewards = zip(*known, strict=True)
    return [{**trace(steps, rewards, "held-out prompts", ROSE, 1.3), "mode": "lines+markers"}]


def turns(run: RunRecords) -> Panel:
    """Turns per trained sample."""
    return Panel(
        "Turns per sample",
        f"An episode may take {run.config.rollout.max_turns} turns (rollout.max_turns).",
        [_line(run, "turns_mean", "mean", TEAL)],
        axes("step", "turns", rangemode="tozero"),
    )


def turn_counts(run: RunRecords) -> Panel:
    """How many turns the finished samples took, as a heat map over the run."""
    bins = bins_of([sample["turns"] for sample in run.samples if sample["kind"] == "finished"])
    levels = sorted({turns for _, counts in bins for turns in counts})
    shares = [[counts[level] / counts.total() for _, counts in bins] for level in levels]
    return Panel(
        "Turns per sample over time",
        "Share of the finished samples by the number of turns they took.",
        [heat([start for start, _ in bins], levels, shares, GREENS)],
        axes("finished samples", "turns", dtick=1),
    )


def response_length(run: RunRecords) -> Panel:
    """Mean and largest response length, in tokens."""
    return Panel(
        "Response length",
        "Tokens, observations included. A maximum that sits on a limit means cut episodes.",
        [_line(run, "response_length_mean", "mean", BLUE), _line(run, "response_length_max", "max", GREY, 1.3)],
        axes("step", "tokens", rangemode="tozero"),
    )


def lag(run: RunRecords) -> Panel:
    """Lags at consumption against the knobs that bounded them when each step was taken."""
    return Panel(
        "Group lag",
        "No token in the loss lies above max_staleness, no group above the largest max_lag since its start.",
        [
            dashed(stepped(_line(run, "max_staleness", "max_staleness", AMBER, 1.2))),
            dashed(stepped(_line(run, "max_lag", "max_lag", ROSE, 1.2))),
            _line(run, "token_lag_mean", "token mean", BLUE),
            stepped(_line(run, "trained_token_lag_max", "trained token max", AMBER)),
            _line(run, "group_lag_mean", "group mean", TEAL, 1.3),
            stepped(_line(run, "group_lag_max", "group max", ROSE, 1.3)),
        ],
        axes("step", "versions", rangemode="tozero"),
    )


def mixed_versions(run: RunRecords) -> Panel:
    """Share of each step's samples that more than one weight version wrote."""
    shares = [
        step["multi_version_samples"] / (len(step["groups"]) * run.config.rollout.group_size) for step in run.steps
    ]
    layout = axes("step", "share of samples", rangemode="tozero", tickformat=".0%")
    return Panel(
        "Samples of several versions",
        "Episodes go on while weights change: their spans say which version wrote which token.",
        [bars(run.column("step"), shares, "share", VIOLET)],
        layout,
    )


def version_counts(run: RunRecords) -> Panel:
    """How many weight versions wrote each trained trajectory, as a heat map over steps."""
    step_of = run.step_of
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for sample, logged in run.trajectories.items():
        step = step_of.get(SampleId.parse(sample).group)
        if step is not None:
            counts[step][len(versions_of(logged))] += 1
    steps = sorted(counts)
    highest = max((count for counter in counts.values() for count in counter), default=1)
    shares = [[counts[step][level] / counts[step].total() for step in steps] for level in range(1, highest + 1)]
    return Panel(
        "Weight versions per trajectory",
        "Share of the step's trajectories by the number of versions that wrote them.",
        [heat(steps, list(range(1, highest + 1)), shares, PURPLES)],
        axes("step", "versions", dtick=1),
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
        "Tokens per second",
        "Generated tokens of a step's samples over the time since the step before.",
        [
            trace(steps, rates, "per step", PALE_BLUE, 1.3),
            trace(steps, moving_mean(rates, WINDOW), f"mean of {WINDOW} steps", BLUE, 2.6),
        ],
        axes("step", "tokens / s", rangemode="tozero"),
    )


def step_seconds(run: RunRecords) -> Panel:
    """Where a step's seconds go."""
    colours = dict(zip(STEP_PARTS, (GREY, VIOLET, BLUE, TEAL, AMBER), strict=True))
    return Panel(
        "Seconds per step",
        "A tall wait means that rollouts are the slower side; none means that the trainer is.",
        [bars(run.column("step"), run.column(f"{part}_seconds"), part, colours[part]) for part in STEP_PARTS],
        {**axes("step", "seconds"), "barmode": "stack", "bargap": 0.1},
    )


def turn_seconds(run: RunRecords) -> Panel:
    """Median and 95th percentile of each part of a turn."""
    parts = [part for part in TURN_PARTS if len(run.turn_seconds.get(part, ()))]
    names = [part.removesuffix("_seconds") for part in parts]
    ranks = ((50, "median", BLUE), (95, "95th percentile", PALE_BLUE))
    return Panel(
        "Seconds of a turn",
        "From the turn log, on a logarithmic scale.",
        [
            bars(names, [float(np.percentile(run.turn_seconds[part], rank)) for part in parts], name, colour)
            for rank, name, colour in ranks
        ],
        axes("", "seconds", type="log", tickformat="~s", dtick=1),
    )


def stop_reasons(run: RunRecords) -> Panel:
    """Shares of the reasons why episodes ended, over the run's ended samples in order."""
    bins = bins_of([sample["stop_reason"] for sample in run.samples if sample["kind"] != "restarted"])
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
        {**axes("ended samples", "share", tickformat=".0%", range=[0, 1]), "showlegend": True},
    )


def log_prob_difference(run: RunRecords) -> Panel:
    """Mean |engine - trainer| log-prob, on the newest version's samples and on all."""
    return Panel(
        "Engine and trainer",
        "Mean difference of log-probs. Same weights: rounding only, 1e-7 in float32. All: the policy has moved on.",
        [
            _line(run, "log_prob_difference", "same weights", TEAL),
            _line(run, "log_prob_difference_all", "all samples", GREY, 1.3),
        ],
        axes("step", "nats", type="log", exponentformat="power"),
    )


def entropy(run: RunRecords) -> Panel:
    """Policy entropy and the gradient's norm."""
    return Panel(
        "Entropy",
        "Entropy that falls to zero early ends exploration; a growing norm announces divergence.",
        [_line(run, "entropy", "entropy (nats)", BLUE), _line(run, "grad_norm", "gradient norm", AMBER, 1.3)],
        axes("step", "", rangemode="tozero"),
    )


def clipping(run: RunRecords) -> Panel:
    """Share of tokens whose ratio PPO clipped, and the share masked for their age."""
    masked = [step["masked_tokens"] / max(1, step["generated_tokens"]) for step in run.steps]
    return Panel(
        "Clipped tokens",
        "Clipped: the ratio left its bounds. Masked: generated more than max_staleness versions ago.",
        [
            _line(run, "clip_share", "clipped", VIOLET),
            trace(run.column("step"), masked, "masked", ROSE, 1.3),
        ],
        axes("step", "share of tokens", rangemode="tozero", tickformat=".1%"),
    )


def off_policy(run: RunRecords) -> Panel:
    """KL(engine || trainer) per token, by how many versions old the token was."""
    return plots_dashboards.by_lag(
        run, "engine_trainer_kl", "Divergence from the policy that wrote the tokens, by lag",
        "How far the policy had moved from tokens of each age. Lag 0: only the two engines' arithmetic differs.",
        axes("step", "nats per token", type="log", exponentformat="power"),
    )  # fmt: skip


PANELS: tuple[Callable[[RunRecords], Panel], ...] = (
    reward, lag, mixed_versions, version_counts, turns, turn_counts, response_length, stop_reasons, throughput,
    step_seconds, turn_seconds, log_prob_difference, off_policy, entropy, clipping,
)  # fmt: skip


def _line(run: RunRecords, column: str, name: str, colour: str, width: float = 2.2) -> Trace:
    return trace(run.column("step"), run.column(column), name, colour, width)
