"""Whole runs whose weights are broadcast, with real SGLang and gloo: they end as those by disk do, deaths included."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from test_launch import Run

from stream_rl.metrics.turn_log import read

BROADCAST = "engine.weight_transfer=distributed"


@pytest.mark.timeout(600)
def test_a_run_whose_weights_are_broadcast_ends_as_one_by_disk_does(tmp_path: Path, tiny_model: Path) -> None:
    run = Run(tmp_path / "run", tiny_model, 4, BROADCAST)
    with run.started() as process:
        assert run.wait(process) == 0, run.output.read_text()
    run.assert_every_group_trained_once()
    assert run.summary["eval_reward"] is not None
    assert not any(run.summary["recoveries"].values())
    steps = list(read(run.folder / "steps.jsonl"))
    assert [line["version"] for line in steps] == ["1", "2", "3", "4"]
    # The engine computes what the trainer does, with every version that it was sent.
    assert max(line["log_prob_difference"] for line in steps) < 1e-3
    assert [path.name for path in (run.folder / "weights").iterdir()] == [".static"]
    assert (run.folder / "checkpoints" / "hf" / "model.safetensors").exists()


@pytest.mark.timeout(900)
def test_a_killed_rank_is_named_and_the_run_goes_on_with_broadcasts(tmp_path: Path, tiny_model: Path) -> None:
    run = Run(tmp_path / "run", tiny_model, 6, BROADCAST, "trainer.world_size=2", "evaluation.episodes=0")
    with run.started() as process:
        now = run.until(process, lambda now: now.ledger_steps >= 2 and bool(now.engines))
        os.kill(next(known.pid for known in now.processes if known.name == "trainer-1"), signal.SIGKILL)
        assert run.wait(process) == 0, run.output.read_text()
    run.assert_every_group_trained_once()
    assert run.summary["recoveries"]["trainer"] == 1
    (told,) = [line for line in run.output.read_text().splitlines() if "trainer died, bringing it back" in line]
    assert "rank 1: ActorDiedError: killed or crashed" in told
    logged = (run.folder / "logs" / "supervisor.log").read_text().splitlines()
    first = next(line for line in logged if "trainer" in line)
    assert "trainer died: rank 1: ActorDiedError: killed or crashed" in first
    assert "trainer rank 0 ends: RankLost" in (run.folder / "logs" / "trainer-0.log").read_text()
