"""What lag is: how many versions older than the trainer the writer of a token was. docs/staleness.md explains it.

    v0 ── oldest token ──────── newest token ── last sibling's newest ────────── T, the step's start
          │◄── generating ────►│◄── siblings ──►│◄────────── ready ───────────►│
          │◄──────────────────────── lag of a sample ───────────────────────────►│

All lags are counted when a step takes the tokens ("at consumption"), in trainer versions: T is the version that the
step starts from, its number less one. Versions are those that the engines stamped on their tokens, never a clock's. The
parts of a sample's lag are cut by the newest tokens of the sample and of its group, so that they add up to it exactly;
what an environment does after the last token counts as waiting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_rl.sample import OBSERVATION_STEP, Int32

__all__ = ["LagParts", "group_lag", "lag_parts", "token_lags", "written_by"]

Floats = NDArray[np.float64]


class LagParts(NamedTuple):
    """The lag of each sample of a group, and what it is made of; each float64 (group_size,), in versions.

    generating  while the sample was being written
    siblings    from then until the last of its siblings was
    ready       from then until a step took the group
    """

    generating: Floats
    siblings: Floats
    ready: Floats

    @property
    def lag(self) -> Floats:
        """The lag of each sample: that of its oldest generated token."""
        return self.generating + self.siblings + self.ready


def token_lags(version_steps: Int32, trainer_version: int) -> Int32:
    """The lag of each token, int32 (r,), 0 on observations; `version_steps` is `Sample.version_steps`."""
    return np.where(version_steps == OBSERVATION_STEP, 0, trainer_version - version_steps).astype(np.int32)


def written_by(version_steps: Int32, trainer_version: int) -> tuple[int, int]:
    """The oldest and the newest version that wrote a sample; both `trainer_version` where nothing was generated."""
    steps = version_steps[version_steps != OBSERVATION_STEP]
    return (int(steps.min()), int(steps.max())) if len(steps) else (trainer_version, trainer_version)


def group_lag(v0: Floats, trainer_version: int) -> Floats:
    """The lags of groups: at least those of their tokens, as none is older than v0. Bounded by `max_lag`."""
    return trainer_version - v0


def lag_parts(oldest: Floats, newest: Floats, trainer_version: int) -> LagParts:
    """What the lags of a group's samples are made of.

    Args:
        oldest, newest: the versions that wrote each sample, as `written_by` gives them; float64 (..., group_size).
        trainer_version: the version that the step starts from.
    """
    last = newest.max(axis=-1, keepdims=True)
    return LagParts(newest - oldest, last - newest, np.broadcast_to(trainer_version - last, newest.shape))
