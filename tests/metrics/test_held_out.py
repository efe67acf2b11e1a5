"""Evaluations stand beside the training's rewards, at the steps whose version they played."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stream_rl.metrics.plots import reward
from stream_rl.metrics.run_folder import RunRecords
from stream_rl.metrics.turn_log import JsonLines


def test_evaluations_are_drawn_where_their_versions_were_trained(run_folder: Path, tmp_path: Path) -> None:
    JsonLines(tmp_path / "evaluations.jsonl").extend(
        [{"step": 20, "mean_reward": 0.5}, {"step": 10, "mean_reward": 0.25}, {"step": None, "mean_reward": 0.9}]
    )
    (tmp_path / "config.yaml").write_bytes((run_folder / "config.yaml").read_bytes())
    loaded = RunRecords.load(tmp_path)
    run = replace(RunRecords.load(run_folder), evaluations=loaded.evaluations)
    *others, held_out = reward(run).data
    assert (held_out["x"], held_out["y"]) == ([10, 20], [0.25, 0.5])
    assert reward(replace(run, evaluations=[])).data == others
