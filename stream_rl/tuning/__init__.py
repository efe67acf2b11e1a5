"""Finds good settings: a simulator of a run, fitted to what it logged, and sweeps of real runs."""

from stream_rl.tuning.fit import Fit, fit_run
from stream_rl.tuning.machine import Machine
from stream_rl.tuning.recommendation import Candidate, explore, grid, recommend
from stream_rl.tuning.simulation import Plan, Prediction, simulate
from stream_rl.tuning.workload import Episode, GivenWorkload, Workload

__all__ = [
    "Candidate", "Episode", "Fit", "GivenWorkload", "Machine", "Plan", "Prediction", "Workload", "explore", "fit_run",
    "grid", "recommend", "simulate",
]  # fmt: skip
