"""Turns are counted in batches, and whoever looks sees all of them."""

from __future__ import annotations

import threading

import numpy as np
from prometheus_client import REGISTRY

from stream_rl.producer.turn_counts import MOST, TURN_COUNTS, TurnCounts
from stream_rl.sample import Turn, VersionSpan, WeightVersion


def turn(index: int, tokens: int = 3, *, complete: bool = True, failures: int = 0) -> Turn:
    return Turn(
        index, np.arange(tokens, dtype=np.int32), np.zeros(tokens, np.float32), np.arange(2, dtype=np.int32),
        (VersionSpan(0, tokens, WeightVersion(0)),), complete=complete, parse_failures=failures, active_seconds=1.0,
        timings={"generate": 0.25, "queue": 0.125, "env_step": 0.5, "encode": 0.0625},
    )  # fmt: skip


def shown(name: str, environment: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"stream_rl_{name}", {"environment": environment, **labels}) or 0.0


def looked_at(counts: TurnCounts, name: str, environment: str, **labels: str) -> float:
    counts.collect()
    return shown(name, environment, **labels)


def test_an_interaction_counts_once_with_all_its_records() -> None:
    counts, of = TurnCounts(), "pieces"
    counts.add([turn(0), turn(0, 4, complete=False)], of)
    counts.add([turn(1, complete=False)], of)
    assert looked_at(counts, "turn_generated_tokens_count", of) == 2
    assert shown("turn_generated_tokens_sum", of) == 3 + 4 + 3
    assert shown("turn_generate_seconds_sum", of) == 0.75
    assert shown("turn_env_seconds_count", of) == 1
    assert shown("first_action_seconds_sum", of) == 2.0
    assert shown("turn_index_turns_total", of, turn_index="0") == 1
    assert shown("turn_index_turns_total", of, turn_index="1") == 0


def test_the_first_look_sees_the_first_turn() -> None:
    """Through the registry that is served, whose collectors were listed before the look counted anything."""
    TURN_COUNTS.add([turn(0, failures=2)], "first look")
    assert shown("turn_observation_tokens_count", "first look") == 1
    assert shown("parse_failures_total", "first look") == 2
    TURN_COUNTS.add([turn(1)], "first look")
    assert shown("turn_observation_tokens_count", "first look") == 2


def test_rows_do_not_pile_up_and_none_is_lost_while_somebody_looks() -> None:
    counts, of, done = TurnCounts(), "piles", threading.Event()

    def look() -> None:
        while not done.is_set():
            counts.collect()

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(3 * MOST + 5):
        counts.add([turn(2)], of)
        assert len(counts._rows) < MOST
    done.set()
    looking.join(30)
    assert looked_at(counts, "turn_index_turns_total", of, turn_index="2") == 3 * MOST + 5
