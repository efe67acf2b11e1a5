"""Name the bright quadrant of a new picture, every turn: no later picture can be left out.

    environment.args.turns     pictures of an episode, 3 unless given; rollout.max_turns should be as many
    environment.args.frame     pixels a side of a picture, 32 unless given
    environment.args.colours   gives every picture its own colour, so that no two are alike; else all are white
    environment.args.blank_observations   shows black pictures: what an agent reaches that does not look

An answer should be one of the words northwest, northeast, southwest and southeast. Each picture is shown for one turn
and is worth 1 / turns: all of it for the right word, a tenth for a wrong one, nothing for any other text. Who looks
always gets 1; without sight no policy expects more than .25 + .075 = .325.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.envs.frames import Colour, blank_frame, cells, shown
from stream_rl.envs.labels import whole_number
from stream_rl.errors import EnvironmentLoadError

__all__ = ["QuadrantEachTurn", "build_env", "prompt"]

QUADRANTS = {"northwest": (0, 0), "northeast": (0, 1), "southwest": (1, 0), "southeast": (1, 1)}
FORMAT_SHARE = 0.1
WHITE = (255, 255, 255)
DARKEST = 128


def prompt(seed: int, index: int, _args: Any = None) -> dict[str, Any]:
    """The prompt with this index: always the word "where"; the label is the seed of the episode's pictures."""
    return {"prompt": "where", "label": random.Random(f"quadrant_each_turn {seed} {index}").randrange(2**31)}


def build_env(
    sample: Any = None,
    args: Any = None,
    *,
    turns: int = 3,
    frame: int = 32,
    colours: bool = False,
    blank_observations: bool = False,
    **_: Any,
) -> QuadrantEachTurn:
    """An episode with the pictures of `sample.label`."""
    if not isinstance(turns, int) or turns < 1:
        raise EnvironmentLoadError(f"environment.args.turns={turns!r} must be a whole number from 1")
    seed = whole_number(sample.label, "quadrant_each_turn", 0)
    return QuadrantEachTurn(seed, turns=turns, side=int(frame), colours=bool(colours), blank=bool(blank_observations))


class QuadrantEachTurn(BaseInteractionEnv):
    """One episode. Async because a step takes microseconds: a thread would cost more than it."""

    def __init__(
        self, seed: int, *, turns: int = 3, side: int = 32, colours: bool = False, blank: bool = False
    ) -> None:
        self._seed = seed
        self._turns = turns
        self._side = side
        self._colours = colours
        self._blank = blank
        self._answered = 0

    async def reset(self) -> tuple[Observation, Info]:
        """Shows the first picture."""
        self._answered = 0
        return self._seen(), {}

    async def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Scores an answer and shows the next picture."""
        named = QUADRANTS.get(response_text.strip())
        bright, _ = self._picture()
        share = 1.0 if named == bright else FORMAT_SHARE * (named is not None)
        self._answered += 1
        done = self._answered == self._turns
        return {} if done else self._seen(), done, {"reward": share / self._turns}

    def state_dict(self) -> dict[str, Any]:
        """How many pictures were answered; the pictures are the sample's label."""
        return {"answered": self._answered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._answered = int(state["answered"])

    def _seen(self) -> Observation:
        if self._blank:
            return shown(blank_frame(self._side))
        bright, colour = self._picture()
        return shown(cells(self._side, 2, {bright: colour}))

    def _picture(self) -> tuple[tuple[int, int], Colour]:
        chance = random.Random(f"{self._seed} {self._answered}")
        bright = chance.choice(list(QUADRANTS.values()))
        if not self._colours:
            return bright, WHITE
        return bright, (chance.randint(DARKEST, 255), chance.randint(DARKEST, 255), chance.randint(DARKEST, 255))
