"""`stream-rl simulate` and `stream-rl sweep`, from files and logs that are given; nothing is trained."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest
import yaml
from command_line import StreamRL

from stream_rl.cli import main
from stream_rl.cli.tables import lag_line
from stream_rl.metrics.turn_log import JsonLines
from stream_rl.tuning import sweep as sweeping
from stream_rl.tuning.sweep import Cell

SMALL = (
    "rollout.groups_per_step=2",
    "rollout.group_size=2",
    "producer.concurrency=16",
    "engine.max_running_requests=8",
)


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "given.yaml"
    path.write_text(yaml.safe_dump({
        "workload": {"turns_median": 3, "tokens_median": 20, "tokens_most": 60, "env_median": 1.0},
        "machine": {"token_seconds": 0.02, "update_seconds": 0.5, "train_seconds": 0.001},
    }))  # fmt: skip
    return path


def test_the_status_says_what_lag_is_made_of() -> None:
    step = {"lag_parts": {"generating": 1.25, "siblings": 0.5, "ready": 0.25}, "group_lag_max": 5, "wait_seconds": 1.0}
    step |= {f"{part}_seconds": 1.0 for part in ("load", "train", "publish", "checkpoint")}
    assert str(lag_line([step])) == (
        "lag 2.0 versions: 1.2 generating, 0.5 waiting for siblings, 0.2 ready; the trainer waits 20%; "
        "asked for by this: run_ahead 2, max_lag 5"
    )
    assert str(lag_line([])) == ""


def test_what_is_given_is_simulated(stream_rl: StreamRL, settings: Path, given: Path) -> None:
    answer = stream_rl("simulate", settings, *SMALL, "--given", given, "--max-staleness", "0,2", "--steps", 12)
    assert answer.code == 0, answer.err
    assert "1 with 8 slots, a token every 20.00 ms alone and 24.00 ms when full" in answer.out
    rows = [line.split() for line in answer.out.splitlines() if line.strip()[:1].isdigit()]
    assert rows[0][:4] == ["8", "3", "12", "16"]  # the settings' own
    assert [row[:4] for row in rows[1:3]] == [["0", "0", "0", "16"], ["2", "2", "3", "16"]]
    rates = [float(row[4].replace(",", "")) for row in rows[:3]]
    assert rates[0] > rates[1] > 0
    assert f"stream-rl set {settings.parent / 'run'} run_ahead=" in answer.out


def test_concurrencies_are_tried_with_every_bound(stream_rl: StreamRL, settings: Path, given: Path) -> None:
    answer = stream_rl(
        "simulate", settings, *SMALL, "--given", given, "--max-staleness", 1, "--concurrency", "4,8", "--steps", 12
    )
    rows = [line.split()[:4] for line in answer.out.splitlines() if line.strip()[:1].isdigit()]
    assert rows[1:] == [["1", "1", "2", "4"], ["1", "1", "2", "8"]]


def test_figures_are_whole_on_a_narrow_terminal(
    settings: Path, given: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["stream-rl", "simulate", str(settings), *SMALL, "--given", str(given),
                                     "--max-staleness", "0", "--steps", "12"])  # fmt: skip
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main()
    out = capsys.readouterr().out
    assert "…" not in out
    assert re.search(r"stream-rl set \S+ run_ahead=\S+ max_staleness=\S+ max_lag=\S+ concurrency=\d+\n", out)


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ("workload: {env_sigma: 1000, env_median: 0}", "workload.env_sigma: Input should be less than or equal"),
        ("workload: {turns_sigma: 11}", "workload.turns_sigma: Input should be less than or equal to 10"),
        ("machine: {step_seconds: 1000000}", "this cannot be simulated: run_ahead=9 with groups_per_step=4 lets more"),
    ],
)
def test_worlds_that_cannot_be_played(
    stream_rl: StreamRL, settings: Path, given: Path, monkeypatch: pytest.MonkeyPatch, *, world: str, message: str
) -> None:
    monkeypatch.setattr("stream_rl.tuning.simulation.MOST_LIVE", 64)
    given.write_text(world)
    knobs = ("rollout.groups_per_step=4", "rollout.group_size=4", "scheduling.run_ahead=9")
    answer = stream_rl("simulate", settings, *knobs, "--given", given)
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-staleness", "1,two"), "--max-staleness 1,two: must be whole numbers"),
        (("--concurrency", "0"), "--concurrency 0: 1 is the smallest"),
        (("--max-staleness", "1,2147483648"), "--max-staleness 1,2147483648: 2147483647 is the largest"),
        ((), "is no run folder"),
        (("--from", "here", "--given", "there"), "pass one"),
        (("--given", "GIVEN", "--steps", "12"), "workload.turns_medium: Extra inputs"),
    ],
)
def test_wrong_arguments_of_simulate(
    stream_rl: StreamRL, settings: Path, given: Path, arguments: tuple[str, ...], message: str
) -> None:
    given.write_text("workload: {turns_medium: 3}")
    answer = stream_rl("simulate", settings, *(str(given) if part == "GIVEN" else part for part in arguments))
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_a_sweep_trains_what_is_missing(
    stream_rl: StreamRL, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def train(_: Path, cell: Cell) -> None:
        trained.append(cell.folder.name)
        with JsonLines(cell.folder / "steps.jsonl") as log:
            parts = dict.fromkeys(("wait", "load", "train", "publish", "checkpoint"), 0.2)
            for step in range(1, 4):
                log.append({"step": step, "reward_mean": 0.1 * step + cell.seed, "token_lag_mean": 0.5,
                            **{f"{part}_seconds": value for part, value in parts.items()}})  # fmt: skip
        (cell.folder / "summary.json").write_bytes(orjson.dumps({"steps": 3}))

    monkeypatch.setattr(sweeping, "train_cell", train)
    command = ("sweep", settings, "trainer.steps=3", "--max-staleness", "0,1", "--seeds", "2", "--target", "0.15")
    assert "0 of them finished" in stream_rl(*command, "--report-only").out
    answer = stream_rl(*command)
    assert answer.code == 0, answer.err
    names = [f"staleness{bound}-seed{seed}" for seed in (0, 1) for bound in (0, 1)]
    assert sorted(trained) == sorted(names)
    assert "4 of 4 finished" in answer.out
    row = next(line.split() for line in answer.out.splitlines() if line.strip().startswith("staleness 1"))
    assert row[:4] == ["staleness", "1", "2", "3"]
    assert (tmp_path / "run-sweep" / "sweep.html").exists()
    assert "4 runs of 3 steps" in stream_rl(*command).out
    assert len(trained) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-staleness", "1,x"), "must be whole numbers"),
        (("--max-staleness", "-1"), "0 is the smallest"),
        (("--variant", "clip"), "must be NAME: KEY=VALUE"),
        (("--variant", "tight: trainer.clip_lo=0.1"), "did you mean 'clip_low'?"),
    ],
)
def test_wrong_arguments_of_sweep(
    stream_rl: StreamRL, settings: Path, arguments: tuple[str, ...], message: str
) -> None:
    answer = stream_rl("sweep", settings, *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
