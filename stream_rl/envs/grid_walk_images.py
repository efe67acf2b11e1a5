"""Walk a dot to the goal on a small grid that is only seen: every move is answered with a picture of where things are.

    environment.args.size    cells a side, 2 unless given
    environment.args.frame   pixels a side of a picture, 32 unless given
    environment.args.blank_observations   shows black pictures: what an agent reaches that does not look

An action is one of the words up, down, left and right; a move into a wall leaves the dot where it is. Reward over an
episode: 1 when the dot reached the goal, else 0.1 times the share of well-formed actions. A step's `info["reward"]` is
what it changes of that total. Who looks, always wins within 2 * (size - 1) moves. Without sight no policy has more than
.625 on 2x2 cells in 3 turns, and .4125 on 3x3 cells in 4.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.envs.frames import blank_frame, cells, shown
from stream_rl.envs.labels import label_parts
from stream_rl.errors import ActionError, EnvironmentLoadError

__all__ = ["GridWalk", "build_env", "prompt"]

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
FORMAT_REWARD = 0.1
INVALID = "invalid"
DOT, GOAL = (255, 0, 0), (0, 255, 0)
LARGEST = 16


def prompt(seed: int, index: int, args: Any = None) -> dict[str, Any]:
    """The prompt with this index: always the word "go"; the label says on which cells dot and goal are."""
    size = _checked_size(getattr(args, "size", 2))
    start, goal = random.Random(f"grid_walk_images {seed} {index}").sample(range(size * size), 2)
    return {"prompt": "go", "label": {"start": divmod(start, size), "goal": divmod(goal, size)}}


def build_env(
    sample: Any = None,
    args: Any = None,
    *,
    size: int = 2,
    frame: int = 32,
    blank_observations: bool = False,
    **_: Any,
) -> GridWalk:
    """An episode on the cells of `sample.label` ({"start", "goal"}, each a row and a column)."""
    start, goal = map(_cell, label_parts(sample.label, "grid_walk_images", "start", "goal"))
    return GridWalk(start, goal, size=_checked_size(size), side=int(frame), blank=bool(blank_observations))


class GridWalk(BaseInteractionEnv):
    """One episode. Async because a step takes microseconds: a thread would cost more than it."""

    def __init__(
        self, start: tuple[int, int], goal: tuple[int, int], *, size: int = 2, side: int = 32, blank: bool = False
    ) -> None:
        self._start = self._dot = start
        self._goal = goal
        self._size = size
        self._side = side
        self._blank = blank
        self._actions = self._well_formed = 0
        self._total = 0.0

    async def reset(self) -> tuple[Observation, Info]:
        """Shows the start."""
        self._dot = self._start
        self._actions = self._well_formed = 0
        self._total = 0.0
        return self._seen(), {}

    async def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Moves the dot. Raises ActionError for what is no move."""
        move = MOVES.get(response_text.strip())
        self._actions += 1
        if move is None:
            raise ActionError(INVALID, reward=self._reward())
        self._well_formed += 1
        row, column = (min(max(at + by, 0), self._size - 1) for at, by in zip(self._dot, move, strict=True))
        self._dot = (row, column)
        return self._seen(), self._dot == self._goal, {"reward": self._reward()}

    async def cut(self, response_text: str) -> Info:
        """A response without its end is no well-formed action."""
        self._actions += 1
        return {"reward": self._reward()}

    def state_dict(self) -> dict[str, Any]:
        """Everything but the start and the goal, which are the sample's label."""
        return {
            "dot": list(self._dot),
            "actions": self._actions,
            "well_formed": self._well_formed,
            "total": self._total,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._dot = _cell(state["dot"])
        self._actions, self._well_formed = int(state["actions"]), int(state["well_formed"])
        self._total = float(state["total"])

    def _seen(self) -> Observation:
        if self._blank:
            return shown(blank_frame(self._side))
        return shown(cells(self._side, self._size, {self._goal: GOAL}, {self._dot: DOT}))

    def _reward(self) -> float:
        total = 1.0 if self._dot == self._goal else FORMAT_REWARD * self._well_formed / self._actions
        change, self._total = total - self._total, total
        return change


def _cell(place: Any) -> tuple[int, int]:
    row, column = place
    return int(row), int(column)


def _checked_size(size: Any) -> int:
    if not isinstance(size, int) or not 2 <= size <= LARGEST:
        raise EnvironmentLoadError(f"environment.args.size={size!r} must be a whole number from 2 to {LARGEST}")
    return size
