"""Sweeps: their runs, what is left to do of them, and the figures that they end in. Nothing is trained."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import yaml

from stream_rl.config import Config
from stream_rl.errors import ConfigError, ProcessDied
from stream_rl.metrics.turn_log import JsonLines
from stream_rl.tuning.sweep import Cell, Variant, cells, parse_variant, run_cells, train_cell
from stream_rl.tuning.sweep_report import curve_of, rows_of, write_sweep

STEPS = 10


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    tree = {
        "run": str(tmp_path / "run"),
        "model": {"path": "m"},
        "environment": {"path": "e"},
        "trainer": {"steps": STEPS},
    }
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture
def todo(settings: Path, tmp_path: Path) -> list[Cell]:
    return cells(settings, (), staleness=[0, 2], variants=[Variant()], seeds=[0, 1], folder=tmp_path / "sweep")


def train(cell: Cell, rewards: list[float] | None = None, steps: int = STEPS) -> None:
    """Leaves what a run of `steps` steps leaves."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    (cell.folder / "config.yaml").touch()
    with JsonLines(cell.folder / "steps.jsonl") as log:
        for step in range(1, steps + 1):
            parts = dict.fromkeys(("load", "train", "publish", "checkpoint"), 0.25)
            log.append({
                "step": step, "reward_mean": (rewards or [0.5] * steps)[step - 1], "token_lag_mean": cell.max_staleness,
                "wait_seconds": 1.0, **{f"{part}_seconds": value for part, value in parts.items()},
            })  # fmt: skip
    (cell.folder / "summary.json").write_bytes(orjson.dumps({"steps": steps}))


def test_every_bound_variant_and_seed_is_a_run(settings: Path, tmp_path: Path) -> None:
    variants = [Variant("clip"), parse_variant("decoupled: trainer.correction=truncated trainer.clip_against=start")]
    found = cells(settings, ["seed=9"], staleness=[0, 4], variants=variants, seeds=[3], folder=tmp_path / "s")
    assert [cell.folder.name for cell in found] == [
        "staleness0-clip-seed3", "staleness0-decoupled-seed3", "staleness4-clip-seed3", "staleness4-decoupled-seed3",
    ]  # fmt: skip
    assert found[3].label == "staleness 4, decoupled"
    assert found[3].overrides[-3:] == ("scheduling.max_staleness=4", "scheduling.max_lag=4", "scheduling.run_ahead=3")
    assert "trainer.clip_against=start" in found[3].overrides


def test_what_cannot_be_trained_is_refused_before_anything_is(settings: Path, tmp_path: Path) -> None:
    broken = [Variant("broken", ("trainer.clip_against=start",))]
    with pytest.raises(ConfigError, match="clip_against=start"):
        cells(settings, (), staleness=[1], variants=broken, seeds=[0], folder=tmp_path)
    with pytest.raises(ConfigError, match="stands twice"):
        cells(settings, (), staleness=[1, 1], variants=[Variant()], seeds=[0], folder=tmp_path)
    with pytest.raises(ConfigError, match="must be NAME: KEY=VALUE"):
        parse_variant("clip")


@pytest.mark.parametrize("name", ["max_staleness", "max_lag", "run_ahead"])
def test_what_the_sweep_sets_is_refused_elsewhere(settings: Path, tmp_path: Path, name: str) -> None:
    """Its own value would win, and the variants would be one and the same."""
    mine = f"scheduling.{name}=1"
    for overrides, variant in (((mine,), Variant()), ((), Variant("less", (mine,)))):
        with pytest.raises(ConfigError, match=f"scheduling.{name} by --max-staleness, leave it out"):
            cells(settings, overrides, staleness=[2], variants=[variant], seeds=[0], folder=tmp_path / "s")


@pytest.mark.parametrize("name", ["tuesday #2", "a: b", "7"])
def test_a_folder_may_have_any_name(settings: Path, tmp_path: Path, name: str) -> None:
    (cell,) = cells(settings, (), staleness=[2], variants=[Variant()], seeds=[0], folder=tmp_path / name)
    assert Config.load(settings, cell.overrides).folder == cell.folder


def test_finished_runs_are_left_alone(todo: list[Cell]) -> None:
    train(todo[1])
    trained: list[Cell] = []

    def once(cell: Cell) -> None:
        trained.append(cell)
        train(cell)

    reported: list[Cell] = []
    run_cells(todo, STEPS, once, after=reported.append)
    assert trained == reported == [todo[0], *todo[2:]]
    run_cells(todo, STEPS, once, after=reported.append)
    assert len(trained) == 3


def test_a_run_that_stops_early_stops_the_sweep(todo: list[Cell]) -> None:
    trained: list[Cell] = []

    def stops(cell: Cell) -> None:
        trained.append(cell)
        train(cell, steps=4)

    with pytest.raises(ProcessDied, match="stopped before its last step"):
        run_cells(todo, STEPS, stops, after=lambda _: None)
    assert trained == todo[:1]
    assert trained[0].begun
    assert not trained[0].finished(STEPS)


def test_a_run_that_fails_is_named(settings: Path, todo: list[Cell]) -> None:
    broken = Cell("x", 0, Variant(), 0, todo[0].folder, ("no.such=1",))
    with pytest.raises(ProcessDied, match=r"staleness0-seed0 ended with exit code 2: .*unknown setting 'no'"):
        train_cell(settings, broken)


def test_figures_by_hand(todo: list[Cell], tmp_path: Path) -> None:
    rewards = {0: [0.0] * 5 + [1.0] * 5, 1: [0.5] * 10}
    for cell in todo[:2] + todo[2:3]:
        train(cell, rewards[cell.seed])
    rows = write_sweep(tmp_path / "sweep", todo, target=0.6)
    slow, fresh = sorted(rows, key=lambda row: -row.lag)
    assert (fresh.label, fresh.seeds, fresh.last, fresh.last_least, fresh.last_most) == (
        "staleness 0",
        2,
        0.75,
        0.5,
        1.0,
    )
    # The mean of five reaches 0.6 at the eighth step, two seconds each; the other seed never does.
    assert (fresh.reached, fresh.steps_to, fresh.seconds_to, fresh.seconds) == (1, 8, 16.0, 20.0)
    assert (slow.label, slow.seeds, slow.lag) == ("staleness 2", 1, 2.0)
    tree = orjson.loads((tmp_path / "sweep" / "sweep.json").read_bytes())
    assert [row["label"] for row in tree["rows"]] == ["staleness 0", "staleness 2"]
    assert len(tree["runs"]) == 4
    page = (tmp_path / "sweep" / "sweep.html").read_text()
    assert "staleness 2" in page
    assert "http" not in page.split("<script>", maxsplit=1)[0]


def test_a_run_without_a_step_has_no_curve(todo: list[Cell]) -> None:
    assert curve_of(todo[0]) is None
    assert rows_of([], 0.9) == []
