"""A world of the `minigrid` package, seen as pictures: the whole grid from above, or what the agent sees of it.

    environment.args.id        the world, for instance `MiniGrid-Empty-5x5-v0`
    environment.args.options   its settings, for instance `{max_steps: 20}`
    environment.args.actions   which actions there are, by minigrid's own names; left, right and forward unless given
    environment.args.tile      pixels a side of a cell, 16 unless given
    environment.args.view      `whole` (unless given) or `agent`
    environment.args.blank_observations   shows black pictures: what an agent reaches that does not look

The model is told the mission and the actions, sees a picture every turn, and answers with one of the actions. The
reward is the world's. Every episode has its own seed, so it is resumed by playing it again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from stream_rl.envs.arguments import options_of, reason, words_of
from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.envs.frames import shown
from stream_rl.envs.labels import label_parts, whole_number
from stream_rl.errors import ActionError, EnvironmentLoadError

__all__ = ["MiniGrid", "build_env", "prompt"]

ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
"""minigrid's names of its actions, in the order of their numbers."""
USUAL = ACTIONS[:3]
VIEWS = ("whole", "agent")
LARGEST_TILE = 256


def prompt(seed: int, index: int, args: Any) -> dict[str, Any]:
    """The mission and the actions; the label is the seed of the episode."""
    episode = random.Random(f"minigrid {seed} {index}").randrange(2**31)
    words = _words(getattr(args, "actions", None))
    world = _make(getattr(args, "id", None), options_of("options", getattr(args, "options", None)))
    world.reset(seed=episode)
    mission = world.unwrapped.mission.strip().rstrip(".")
    world.close()
    text = f"Mission: {mission}. Answer every time with one action: {', '.join(words)}."
    return {"prompt": text, "label": {"seed": episode}}


def build_env(
    sample: Any = None,
    args: Any = None,
    *,
    id: Any = None,  # noqa: A002 - gymnasium's own name of it
    options: Mapping[str, Any] | None = None,
    actions: Sequence[str] | None = None,
    tile: int = 16,
    view: str = "whole",
    blank_observations: bool = False,
    **_: Any,
) -> MiniGrid:
    """An episode with the seed of `sample.label` ({"seed"}). Raises EnvironmentLoadError or DataError."""
    if view not in VIEWS:
        raise EnvironmentLoadError(f"environment.args.view={view!r} must be one of {', '.join(VIEWS)}")
    if not isinstance(tile, int) or not 1 <= tile <= LARGEST_TILE:
        raise EnvironmentLoadError(f"environment.args.tile={tile!r} must be a whole number from 1 to {LARGEST_TILE}")
    (seed,) = label_parts(sample.label, "minigrid", "seed")
    words, world = _words(actions), _make(id, options_of("options", options))
    return MiniGrid(
        world,
        words,
        whole_number(seed, "minigrid", 0),
        tile=tile,
        agent_view=view == "agent",
        blank=bool(blank_observations),
    )


class MiniGrid(BaseInteractionEnv):
    """One episode. Sync: it runs in a thread, as drawing takes milliseconds."""

    deterministic = True

    def __init__(
        self,
        world: Any,
        words: Sequence[str],
        seed: int,
        *,
        tile: int = 16,
        agent_view: bool = False,
        blank: bool = False,
    ) -> None:
        self._world = world
        self._words = words
        self._seed = seed
        self._tile = tile
        self._agent_view = agent_view
        self._blank = blank

    def reset(self) -> tuple[Observation, Info]:
        """The world at its start."""
        self._world.reset(seed=self._seed)
        return self._seen(), {}

    def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Takes an action. Raises ActionError for what is none."""
        word = response_text.strip().strip(".").lower()
        if word not in self._words:
            raise ActionError(f"Answer with one of: {', '.join(self._words)}.")
        _, reward, terminated, truncated, _ = self._world.step(ACTIONS.index(word))
        return self._seen(), bool(terminated or truncated), {"reward": float(reward)}

    def close(self) -> None:
        """Closes the world."""
        self._world.close()

    def _seen(self) -> Observation:
        pixels = self._world.unwrapped.get_frame(
            highlight=not self._agent_view, tile_size=self._tile, agent_pov=self._agent_view
        )
        return shown(Image.fromarray(pixels * 0 if self._blank else pixels))


def _words(given: Any) -> tuple[str, ...]:
    words = words_of("actions", given) or USUAL
    if unknown := [word for word in words if word not in ACTIONS]:
        raise EnvironmentLoadError(
            f"environment.args.actions has {', '.join(map(repr, unknown))}: there are {', '.join(ACTIONS)}"
        )
    return words


def _make(name: Any, options: Mapping[str, Any]) -> Any:
    if not name:
        raise EnvironmentLoadError("environment.args.id is missing: name a world, for instance MiniGrid-Empty-5x5-v0")
    try:
        import gymnasium  # noqa: PLC0415 - an extra: only runs that use it need it
        import minigrid.minigrid_env  # noqa: PLC0415 - as above; registers its worlds
    except ImportError as error:
        raise EnvironmentLoadError("environment.path='minigrid' needs `pip install minigrid`") from error
    try:
        world: Any = gymnasium.make(str(name), **options)
    except Exception as error:  # a world may raise anything for options that it does not like
        raise EnvironmentLoadError(f"environment.args.id={name!r} with these options: {reason(error)}") from error
    if not isinstance(world.unwrapped, minigrid.minigrid_env.MiniGridEnv):
        raise EnvironmentLoadError(
            f"environment.args.id={name!r} is no world of minigrid: name one, for instance MiniGrid-Empty-5x5-v0"
        )
    return world
