"""A fit finds the speeds and the episodes that the logs were written with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_rl.config import Config
from stream_rl.errors import ConfigError, DataError
from stream_rl.metrics.turn_log import JsonLines
from stream_rl.tuning import fit_run

TOKEN, CROWD, READ, TURN = 0.01, 0.002, 0.0005, 0.03
FIXED, EACH, PUBLISH = 1.5, 0.0004, 0.8


def config(folder: Path, engines: int = 1, pause_mode: str = "retract") -> Config:
    return Config.parse({
        "run": str(folder), "model": {"path": "m"}, "environment": {"path": "e"},
        "rollout": {"groups_per_step": 2, "group_size": 2},
        "engine": {"count": engines, "max_running_requests": 64, "pause_mode": pause_mode},
    })  # fmt: skip


def turn(sample: str, number: int, ends: float, beside: int, generated: int, **changes: Any) -> dict[str, Any]:
    """A turn that generated beside as many others as `beside` says, itself counted, and waited while all were read."""
    prompt, observation = changes.get("prompt", 40), 10
    read = prompt if number == 0 else observation
    seconds = TURN + READ * read * beside + generated * (TOKEN + CROWD * beside)
    group, index, *attempt = map(int, sample.split("-"))
    return {
        "time": ends + 0.5, "sample": sample, "group": group, "index": index, "attempt": attempt[0] if attempt else 0,
        "turn": number, "complete": True, "position": number + 1, "prompt": prompt, "generated": generated,
        "observation": observation, "versions": ["0"], "generate_seconds": seconds + 0.25, "queue_seconds": 0.25,
        "env_seconds": 0.4, "encode_seconds": 0.06, "commit_seconds": 0.04, **changes,
    }  # fmt: skip


def write(
    folder: Path, turns: list[dict[str, Any]], finished: list[str], steps: int = 5, *, engines: int = 1,
    pause_mode: str = "retract", updated: Sequence[float] = (),
) -> Config:  # fmt: skip
    """A run folder; `updated` are the times at which updates began, else they were long after all turns."""
    made = config(folder, engines, pause_mode)
    ends = [at + PUBLISH for at in updated] or [1e6 + 10.0 * step for step in range(1, steps + 1)]
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(made.dump())
    with JsonLines(folder / "turns" / "p.jsonl") as log:
        log.extend(turns)
    with JsonLines(folder / "samples.jsonl") as log:
        log.extend({"number": number, "kind": "finished", "sample": sample, "group": int(sample.split("-")[0])}
                   for number, sample in enumerate(finished))  # fmt: skip
    with JsonLines(folder / "steps.jsonl") as log:
        for step, end in enumerate(ends, start=1):
            tokens = 1000 * step
            log.append({
                "step": step, "time": end, "generated_tokens": tokens, "trained_tokens": 500,
                "load_seconds": 0.5, "train_seconds": FIXED - 0.5 + EACH * tokens, "publish_seconds": PUBLISH,
                "checkpoint_seconds": 0.0,
            })  # fmt: skip
    return made


@pytest.fixture
def turns() -> list[dict[str, Any]]:
    """Batches of 1, 2, 4 and 8 requests that begin together and end together, long after each other."""
    random, written, ends = np.random.default_rng(0), [], 1000.0
    for batch in range(40):
        beside = 2 ** (batch % 4)
        generated, prompt = int(random.integers(20, 200)), int(random.integers(20, 400))
        ends += 100.0
        written += [turn(f"{batch}-{index}", 0, ends, beside, generated, prompt=prompt) for index in range(beside)]
    return written


def test_speeds(tmp_path: Path, turns: list[dict[str, Any]]) -> None:
    made = write(tmp_path / "run", turns, [t["sample"] for t in turns])
    fit = fit_run(tmp_path / "run", made)
    machine = fit.machine
    assert machine.token_seconds == pytest.approx(TOKEN, rel=0.02)
    assert machine.crowd_seconds == pytest.approx(CROWD, rel=0.02)
    assert machine.prefill_seconds == pytest.approx(READ, rel=0.02)
    assert machine.turn_seconds == pytest.approx(TURN + 0.1, rel=0.1)
    assert machine.step_seconds == pytest.approx(FIXED)
    assert machine.train_seconds == pytest.approx(EACH)
    assert machine.update_seconds == pytest.approx(PUBLISH)
    assert (machine.engines, machine.slots, machine.pause_mode) == (1, 64, "retract")
    assert (fit.turns, fit.steps, fit.measured) == (len(turns), 5, pytest.approx(500 / 10.0))


def test_a_request_alone_on_one_of_four_engines_is_alone(tmp_path: Path) -> None:
    alone = [turn(f"{number}-0", 0, 1e3 + 100 * number, 1, 50 + 7 * (number % 13), prompt=40 + 31 * (number % 7))
             for number in range(60)]  # fmt: skip
    made = write(tmp_path / "run", alone, [t["sample"] for t in alone], engines=4)
    machine = fit_run(tmp_path / "run", made).machine
    assert machine.token_seconds + machine.crowd_seconds == pytest.approx(TOKEN + CROWD, rel=0.02)
    assert machine.prefill_seconds == pytest.approx(READ, rel=0.02)


def after_updates(pause_mode: str) -> tuple[list[dict[str, Any]], list[float]]:
    """Samples of three turns, one at a time; an update comes before the second turn, and another in the third."""
    random, updated, written, at = np.random.default_rng(1), [], [], 1000.0
    for number in range(30):
        first, second, third = (int(some) for some in random.integers(20, 400, 3))
        prompt = int(random.integers(50, 2000))
        context = (prompt, prompt + first + 10, prompt + first + second + 20)
        anew = context if pause_mode == "retract" else (0, 10, 0)
        again = context[2] + third / 2 if pause_mode == "retract" else 0
        read = (prompt, anew[1], 10)
        for place, generated in enumerate((first, second, third)):
            seconds = TURN + READ * read[place] + generated * (TOKEN + CROWD)
            if place == 1:
                updated.append(at + 5.0)
            at += 50.0 + seconds
            if place == 2:
                updated.append(at - seconds / 2)
                seconds, at = seconds + PUBLISH + READ * again, at + PUBLISH + READ * again
            written.append(turn(f"{number}-0", place, at, 1, generated, prompt=prompt,
                                generate_seconds=seconds + 0.25))  # fmt: skip
    return written, updated


@pytest.mark.parametrize("pause_mode", ["retract", "in_place"])
def test_an_update_has_contexts_read_anew_unless_it_is_in_place(tmp_path: Path, pause_mode: str) -> None:
    written, updated = after_updates(pause_mode)
    made = write(tmp_path / "run", written, [t["sample"] for t in written], pause_mode=pause_mode, updated=updated)
    machine = fit_run(tmp_path / "run", made).machine
    assert machine.token_seconds + machine.crowd_seconds == pytest.approx(TOKEN + CROWD, rel=0.02)
    assert machine.prefill_seconds == pytest.approx(READ, rel=0.02)
    assert machine.turn_seconds == pytest.approx(TURN + 0.1, rel=0.2)


def test_seconds_beside_the_engine_are_those_of_a_whole_turn(tmp_path: Path) -> None:
    """Every turn is committed in two chunks, and closed by a record whose tokens came before."""
    written = []
    for number in range(40):
        at, pieces = 1000.0 + 200 * number, (20 + 3 * number, 150 - 2 * number)
        written += [
            turn(f"{number}-0", 0, at + 50 * place, 1, generated, prompt=0 if place else 40 + number, complete=False,
                 observation=0, env_seconds=0.0, position=place + 1)
            for place, generated in enumerate(pieces)
        ]  # fmt: skip
        written.append(turn(f"{number}-0", 0, at + 120, 1, 0, position=3, generate_seconds=0.0, queue_seconds=0.0))
    made = write(tmp_path / "run", written, [t["sample"] for t in written])
    machine = fit_run(tmp_path / "run", made).machine
    assert machine.turn_seconds == pytest.approx(2 * TURN + 3 * 0.1, rel=0.02)


@pytest.mark.parametrize(
    ("log", "line", "message"),
    [
        ("turns/p.jsonl", "[1]", r"turns holds a record without time as a number, remove it: \[1\]"),
        ("turns/p.jsonl", '{"time": 1.0, "position": null}', "holds a record without position as a number"),
        ("steps.jsonl", '{"step": 6, "time": 1}', "steps.jsonl holds a record without generated_tokens as a number"),
        ("steps.jsonl", "{}", "steps.jsonl holds a record without step as a number"),
    ],
)
def test_a_damaged_log_is_named(tmp_path: Path, turns: list[dict[str, Any]], log: str, line: str, message: str) -> None:
    made = write(tmp_path / "run", turns, [t["sample"] for t in turns])
    with (tmp_path / "run" / log).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=message):
        fit_run(tmp_path / "run", made)


def test_without_a_whole_group_there_is_no_workload(tmp_path: Path, turns: list[dict[str, Any]]) -> None:
    made = write(tmp_path / "run", turns, [])
    with pytest.raises(ConfigError, match="has logged too little, a workload needs at least one whole group"):
        fit_run(tmp_path / "run", made)


def test_episodes(tmp_path: Path, turns: list[dict[str, Any]]) -> None:
    """A turn in two records is one; a restarted sample is what it was last; an unfinished group is none."""
    mine = [
        turn("100-0", 0, 9e5, 1, 5), turn("100-0", 1, 9e5 + 1, 1, 6),
        turn("100-0", 0, 9e5 + 2, 1, 7),
        turn("100-0", 1, 9e5 + 3, 1, 8, complete=False, observation=0, env_seconds=0.0),
        turn("100-0", 1, 9e5 + 4, 1, 9, position=3),
        turn("100-1-1", 0, 9e5, 1, 50),
        turn("101-0", 0, 9e5, 1, 60),
    ]  # fmt: skip
    made = write(tmp_path / "run", [*turns, *mine], ["100-0", "100-1-1", "101-0"])
    (group,) = fit_run(tmp_path / "run", made).workload.groups
    assert [episode.generated.tolist() for episode in group] == [[7, 17], [50]]
    assert group[0].observation.tolist() == [10, 10]
    assert group[0].env_seconds.tolist() == [0.4, 0.4]
    assert group[0].prompt == 40


def test_too_little_is_named(tmp_path: Path, turns: list[dict[str, Any]]) -> None:
    made = write(tmp_path / "run", turns[:10], [], steps=2)
    with pytest.raises(ConfigError, match="has logged 10 turns and 2 steps"):
        fit_run(tmp_path / "run", made)
