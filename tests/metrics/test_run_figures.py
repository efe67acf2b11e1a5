"""What a run's records say, as metrics: each record once, in whatever order supervisors come and go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY
from run_folders import sample_record, step_record

from stream_rl.metrics.run_figures import RunFigures
from stream_rl.sample import WeightVersion

ENVIRONMENT = "figures-test"
Grown = Callable[..., float]


@pytest.fixture
def figures() -> RunFigures:
    return RunFigures(ENVIRONMENT, group_size=2)


@pytest.fixture
def grown() -> Grown:
    """By how much a series has grown in this test."""
    before = {(sample.name, *sorted(sample.labels.items())): sample.value
              for metric in REGISTRY.collect() for sample in metric.samples}  # fmt: skip

    def growth(name: str, **labels: str) -> float:
        now = REGISTRY.get_sample_value(f"stream_rl_{name}", labels) or 0.0
        return now - before.get((f"stream_rl_{name}", *sorted(labels.items())), 0.0)

    return growth


def record(number: int, **fields: Any) -> dict[str, Any]:
    return {**sample_record(number, group=number // 2, index=number % 2, turns=3), **fields}


def test_each_sample_counts_once_however_often_it_is_read(figures: RunFigures, grown: Grown) -> None:
    lines = [record(1), record(2, status="truncated", stop_reason="max_turns", reward=0.25)]
    figures.ended(lines)
    figures.ended([*lines, record(3, status="failed", stop_reason="env_failure", kind="failed", reward=None)])

    of = {"environment": ENVIRONMENT}
    assert grown("samples_ended_total", status="completed", reason="env_done", **of) == 1
    assert grown("samples_ended_total", status="truncated", reason="max_turns", **of) == 1
    assert grown("samples_ended_total", status="failed", reason="env_failure", **of) == 1
    assert grown("sample_rewards_total", sign="+", **of) == 1.25
    assert grown("sample_rewards_total", sign="-", **of) == 0
    assert grown("turns_per_sample_count", **of) == 2
    assert grown("generated_tokens_total", **of) == 18


def test_rewards_below_zero_are_added_up_apart(figures: RunFigures, grown: Grown) -> None:
    figures.ended([record(1, reward=-2.0), record(2, reward=0.5), record(3, reward=20.0)])
    of = {"environment": ENVIRONMENT}
    assert grown("sample_rewards_total", sign="-", **of) == 2.0
    assert grown("sample_rewards_total", sign="+", **of) == 20.5
    assert grown("sample_reward_count", **of) == 3
    assert grown("sample_reward_bucket", le="-1.0", **of) == 1


def test_a_restarted_attempt_has_not_ended(figures: RunFigures, grown: Grown) -> None:
    figures.ended([record(1, kind="restarted", status="pending", stop_reason="restart")])
    assert grown("generated_tokens_total", environment=ENVIRONMENT) == 0


def test_siblings_wait_for_their_last(figures: RunFigures, grown: Grown) -> None:
    figures.ended([record(2, time=10.0), record(4, time=11.0), record(3 + 2, group=1, time=17.5)])
    assert grown("sibling_wait_seconds_count") == 1
    assert grown("sibling_wait_seconds_sum") == 7.5


def test_a_replayed_step_counts_once_and_shows_its_last_figures(figures: RunFigures, grown: Grown) -> None:
    random = np.random.default_rng(0)
    first, second = (step_record(step, random) for step in (4, 5))
    again = {**step_record(4, random, incarnation=1, replayed=True), "reward_mean": 0.125}
    figures.stepped([first, second])
    figures.stepped([again])

    assert grown("trainer_steps_total") == 2
    assert grown("trained_tokens_total", lag="1") == 126
    assert grown("masked_tokens_total", length="0-256") == 8
    assert grown("trainer_wait_seconds_total", reason="lag_rule", length="0-256") == pytest.approx(0.1)
    assert grown("train_seconds_total", part="forward_backward") == pytest.approx(0.8)
    assert grown("token_lag_versions_count") == 32
    assert REGISTRY.get_sample_value("stream_rl_trainer_reward_mean") == 0.125


def test_a_figure_that_a_step_does_not_have_keeps_the_last(figures: RunFigures) -> None:
    random = np.random.default_rng(0)
    figures.stepped([{**step_record(1, random), "log_prob_difference": 0.5}])
    figures.stepped([{**step_record(2, random), "log_prob_difference": None}])
    assert REGISTRY.get_sample_value("stream_rl_log_prob_difference") == 0.5


@dataclass
class Seen:
    """A snapshot of the buffer."""

    admitted: int = 10
    live: int = 3
    complete: int = 1
    trained: int = 4
    filtered: int = 2
    dead_lettered: int = 1
    pending: int = 5
    leased: int = 6
    resumable: int = 7
    committed_turns: int = 100
    refills: int = 2
    journal_bytes: int = 4096
    producers: int = 2
    oldest_partial_seconds: float = 1.5
    recoveries: dict[str, int] = field(default_factory=lambda: {"producer": 3})
    engines: tuple[Any, ...] = ()
    rules: Any = field(
        default_factory=lambda: SimpleNamespace(
            groups_per_step=2, group_size=2, run_ahead=0.5, max_staleness=1, max_lag=2, concurrency=0
        )
    )


def test_the_buffers_counters_are_followed_and_never_fall(figures: RunFigures, grown: Grown) -> None:
    before = REGISTRY.get_sample_value("stream_rl_turns_committed_total", {"environment": ENVIRONMENT}) or 0.0
    assert before == 0
    for turns in (100, 96, 103):  # a Redis that lost its newest writes, and got them again
        figures.seen(Seen(committed_turns=turns))
    assert grown("turns_committed_total", environment=ENVIRONMENT) == 103
    assert REGISTRY.get_sample_value("stream_rl_accounting_difference_groups") == 0
    figures.seen(Seen(live=2))
    assert REGISTRY.get_sample_value("stream_rl_accounting_difference_groups") == 1


def test_an_engine_that_left_is_shown_no_more(figures: RunFigures) -> None:
    engines = [SimpleNamespace(engine_id=f"e-{number}", state="serving", version=WeightVersion(7)) for number in (0, 1)]
    figures.seen(Seen(engines=tuple(engines)))
    assert REGISTRY.get_sample_value("stream_rl_engine_version", {"engine": "e-1"}) == 7
    figures.seen(Seen(engines=(engines[0],)))
    assert REGISTRY.get_sample_value("stream_rl_engine_version", {"engine": "e-1"}) is None
    assert REGISTRY.get_sample_value("stream_rl_engines", {"state": "serving"}) == 1


def test_dead_letters_are_told_apart_by_reason(figures: RunFigures, grown: Grown) -> None:
    figures.given_up({"env_failure": 2})
    figures.given_up({"env_failure": 3, "engine_failure": 1})
    assert grown("groups_left_out_total", state="dead_lettered", reason="env_failure") == 3
    assert grown("groups_left_out_total", state="dead_lettered", reason="engine_failure") == 1


class Sink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.closed = False

    def write(self, step: Any) -> None:
        self.steps.append(step["step"])

    def close(self) -> None:
        self.closed = True


def test_others_get_each_step_once_and_hear_of_the_end() -> None:
    sink, random = Sink(), np.random.default_rng(0)
    figures = RunFigures(ENVIRONMENT, 2, [sink])
    for step in (1, 2, 1, 2, 3):  # a trainer that replays
        figures.stepped([step_record(step, random)])
    figures.close()
    assert (sink.steps, sink.closed) == ([1, 2, 3], True)
