"""What `train` shows while it runs: three bars on a terminal, plain lines where it is piped."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from stream_rl.buffer import RunRules, RunSnapshot, RunState
from stream_rl.cli.progress import TrainingProgress
from stream_rl.config import Config

SECONDS = r"\d+:\d\d:\d\d"


def settings(steps: int) -> Config:
    return Config.parse({
        "run": "runs/shown", "model": {"path": "m"}, "environment": {"path": "guess_number"},
        "trainer": {"steps": steps}, "rollout": {"groups_per_step": 8},
    })  # fmt: skip


def snapshot(ledger_steps: int, complete: int, live: int, **recoveries: int) -> RunSnapshot:
    counts = dict.fromkeys((
        "incarnation", "admitted", "trained", "filtered", "dead_lettered", "pending", "leased", "resumable",
        "producers", "committed_turns", "journal_bytes", "refills", "resumes", "refused_commits", "outcomes",
    ), 0)  # fmt: skip
    return RunSnapshot(
        state=RunState.RUNNING, rules=RunRules(groups_per_step=8, group_size=2, total_groups=80),
        ledger_steps=ledger_steps, live=live, complete=complete, recoveries=recoveries, oldest_v0=None,
        engine_version=None, engines=(), processes=(), **counts,
    )  # fmt: skip


def step(number: int, reward: float, difference: float | None = 2.5e-6) -> dict[str, Any]:
    return {
        "step": number, "reward_mean": reward, "turns_mean": 2.345, "token_lag_mean": 1.5, "group_lag_max": 3,
        "versions_max": 2, "wait_seconds": 0.25, "train_seconds": 1.5, "log_prob_difference": difference,
    }  # fmt: skip


class Shown:
    """A progress on a console of its own, and what that shows."""

    def __init__(self, *, terminal: bool, steps: int = 10) -> None:
        self._text = io.StringIO()
        # A dumb terminal is none for bars.
        environment = {"TERM": "xterm"}
        console = Console(file=self._text, force_terminal=terminal, width=120, _environ=environment, no_color=True)
        self.progress = TrainingProgress(settings(steps), console)

    @property
    def lines(self) -> list[str]:
        """All lines ever written, without what moves the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._text.getvalue()).replace("\r", "\n").splitlines()

    def bars(self) -> dict[str, str]:
        """What each bar shows in the end, by its name."""
        found = {}
        for line in self.lines:
            if (bar := re.fullmatch(r" *(steps|groups|reward) [━╸╺ ]+ (.*)", line)) is not None:
                found[bar[1]] = bar[2].strip()
        return found


def test_a_terminal_shows_steps_groups_and_the_mean_of_five_rewards() -> None:
    shown = Shown(terminal=True)
    with shown.progress as progress:
        progress.update(snapshot(0, 3, 20), [])
        progress.update(snapshot(6, 5, 17, producer=0, engine=2), [step(n, n / 10) for n in range(1, 7)])
    bars = shown.bars()
    assert re.fullmatch(rf"6/10 +{SECONDS} \S+ recovered: 2 engine", bars["steps"])
    assert re.fullmatch(rf"5/8 +{SECONDS} \S+ 17 live", bars["groups"])
    assert re.fullmatch(rf"0\.4/1 +{SECONDS} \S+ 0\.400 over 5 steps", bars["reward"])
    assert not [line for line in shown.lines if line.startswith("step ")]


def test_before_anything_happens_the_bars_say_that_it_starts() -> None:
    shown = Shown(terminal=True)
    with shown.progress:
        pass
    bars = shown.bars()
    assert bars["steps"].startswith("0/10 ")
    assert bars["steps"].endswith("starting")
    assert sorted(bars) == ["groups", "reward", "steps"]


def test_more_complete_groups_than_a_step_takes_fill_the_bar_and_a_negative_reward_empties_its_own() -> None:
    shown = Shown(terminal=True)
    with shown.progress as progress:
        progress.update(snapshot(1, 11, 11), [step(1, -0.25)])
    assert shown.bars()["groups"].startswith("8/8 ")
    assert shown.bars()["reward"].startswith("0/1 ")
    assert shown.bars()["reward"].endswith("-0.250 over 5 steps")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_happens_is_said_on_a_line_of_its_own(*, terminal: bool) -> None:
    shown, line = Shown(terminal=terminal), "engine-0 died, bringing it back: " + "a long reason " * 20
    with shown.progress as progress:
        progress.say(line)
    assert shown.lines.count(line) == 1


def test_a_pipe_gets_a_plain_line_a_step_and_no_bar() -> None:
    shown = Shown(terminal=False)
    with shown.progress as progress:
        progress.update(snapshot(0, 3, 20), [])
        progress.update(snapshot(1, 3, 20), [step(1, 0.5)])
        progress.update(snapshot(2, 3, 20), [step(2, 0.25, None)])
    assert shown.lines == [
        "step 1/10  reward 0.500 (5-step 0.500)  turns 2.35  lag 1.50/3  versions 2  wait 0.25s train 1.50s  "
        "|dlogp| 2.5e-06",
        "step 2/10  reward 0.250 (5-step 0.375)  turns 2.35  lag 1.50/3  versions 2  wait 0.25s train 1.50s  |dlogp| -",
    ]


def test_a_long_run_gets_fifty_lines_and_its_last_step() -> None:
    shown = Shown(terminal=False, steps=1010)
    with shown.progress as progress:
        progress.update(snapshot(1010, 0, 0), [step(number, 0.5) for number in range(1, 1011)])
    numbers = [int(line.split("/")[0].removeprefix("step ")) for line in shown.lines]
    assert numbers == [*range(20, 1001, 20), 1010]
