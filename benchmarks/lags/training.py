"""Training runs of the consumer's own update, with the lag of every sample held at one figure.

    step t:   weights of step t - lag ─► play a step's groups ─► the consumer's updates ─► weights of step t + 1
                     ▲                                                                           │
                     └────────────────── published, and taken `lag` steps later ◄────────────────┘

Step t starts from version t - 1, and its groups were written by version t - 1 - lag; the first steps have the weights
that the run began with, for want of older ones.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import orjson
import torch
from torch import Tensor

from lags.playing import Player
from stream_rl.config import ModelConfig, TrainerConfig
from stream_rl.consumer.batching import flatten, mini_batch_groups, rewards
from stream_rl.consumer.collectives import process_group
from stream_rl.consumer.loading import load_policy
from stream_rl.consumer.model import Policy, full_tensors
from stream_rl.consumer.update import Updater
from stream_rl.models.tiny_text import make_tiny_text

__all__ = ["CORRECTIONS", "Curve", "Run", "curve_of"]

CPU = torch.device("cpu")
TIMEOUT = 60.0
WIDTH = 64
GROUPS = 16

_RECIPE = {"learning_rate": 1e-3, "mini_batches": 4, "device": "cpu"}
CORRECTIONS = {
    # The ratio is to the weights that are being updated: it is 1, so nothing is weighted or clipped. Settings refuse
    # it, which is why it is put in behind their back.
    "none": TrainerConfig.model_validate(_RECIPE).model_copy(update={"clip_against": "start"}),
    "clip": TrainerConfig.model_validate(_RECIPE),
    "decoupled": TrainerConfig.model_validate({**_RECIPE, "clip_against": "start", "correction": "truncated"}),
}
"""The trainer's settings, by what they do about tokens of older weights."""


@dataclass(frozen=True, slots=True)
class Run:
    """What tells one run from another; `correction` is a key of CORRECTIONS, `seed` that of weights and prompts."""

    lag: int
    correction: str
    seed: int
    steps: int

    @property
    def name(self) -> str:
        """As a file is called."""
        return f"lag-{self.lag}-{self.correction}-seed-{self.seed}-steps-{self.steps}"


@dataclass(frozen=True, slots=True)
class Curve:
    """A run's figures, one a step but for `seconds`, what all took.

    rewards  mean over the step's samples, as they were played: by weights `lag` steps old
    lags     mean over the trained tokens, in versions
    clipped  share of the trained tokens whose ratio the clip held
    """

    run: Run
    rewards: list[float]
    lags: list[float]
    clipped: list[float]
    seconds: float


def curve_of(run: Run, kept: Path | None) -> Curve:
    """Trains, unless the folder `kept` has this run already; puts it there then."""
    file = None if kept is None else kept / f"{run.name}.json"
    if file is not None and file.exists():
        found = orjson.loads(file.read_bytes())
        return Curve(**{**found, "run": Run(**found["run"])})
    with tempfile.TemporaryDirectory() as folder:
        curve = asyncio.run(_trained(run, Path(folder)))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(orjson.dumps(asdict(curve)))
    return curve


async def _trained(run: Run, folder: Path) -> Curve:
    make_tiny_text(folder / "model", seed=run.seed, width=WIDTH)
    began, curve = time.perf_counter(), Curve(run, [], [], [], 0.0)
    with process_group(0, 1, f"file://{folder}/rendezvous", CPU, TIMEOUT):
        settings = CORRECTIONS[run.correction]
        updater = Updater(load_policy(ModelConfig(path=str(folder / "model")), CPU, settings), settings, CPU)
        player = Player(folder / "model", run.seed)
        published = deque([_weights(updater.policy)], maxlen=run.lag + 1)
        for step in range(1, run.steps + 1):
            player.load(published[0], step - len(published))
            await _step(run, step, player, updater, curve)
            published.append(_weights(updater.policy))
    return Curve(run, curve.rewards, curve.lags, curve.clipped, time.perf_counter() - began)


async def _step(run: Run, step: int, player: Player, updater: Updater, curve: Curve) -> None:
    groups = await player.play(range((step - 1) * GROUPS, step * GROUPS))
    dealt = mini_batch_groups(groups, updater.settings.mini_batches)
    parts = [flatten(part, trainer_version=step - 1, max_staleness=run.lag) for part in dealt]
    figures = updater.step(parts, step)
    curve.rewards.append(float(np.mean([rewards(group) for group in groups])))
    curve.lags.append(float(np.mean(np.concatenate([part.lags[part.carries_loss] for part in parts]))))
    curve.clipped.append(figures.clip_share)


def _weights(policy: Policy) -> dict[str, Tensor]:
    """A copy: the policy's own change under the next update."""
    return {name: value.clone() for name, value in full_tensors(policy, torch.float32)}
