"""A one-player game of the `textarena` package, for instance GuessTheNumber.

    environment.args.id        the game, for instance `GuessTheNumber-v0`
    environment.args.options   its settings, for instance `{max_number: 8, max_turns: 4}`

The prompt is the game's own; after that the model sees what is new. The game's reward comes with its last turn, so the
game's own `max_turns` should not be more than `rollout.max_turns`. Every episode has its own seed, so it is resumed by
playing it again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.errors import EnvironmentLoadError

__all__ = ["TextArena", "build_env", "prompt"]

Result = TypeVar("Result")

_TURN = threading.Lock()
"""Games draw from Python's one `random`: each has its own state of it, and a game at a time is played."""


def prompt(seed: int, index: int, args: Any) -> dict[str, Any]:
    """The game's prompt; the label is the seed of the episode."""
    episode = random.Random(f"textarena {seed} {index}").randrange(2**31)
    game = TextArena(_make(getattr(args, "id", None), getattr(args, "options", None) or {}), episode)
    return {"prompt": game.opening(), "label": {"seed": episode}}


def build_env(
    sample: Any = None,
    args: Any = None,
    *,
    id: Any = None,  # noqa: A002 - textarena's own name of it
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> TextArena:
    """An episode with the seed of `sample.label` ({"seed"})."""
    return TextArena(_make(id, options or {}), int(sample.label["seed"]))


class TextArena(BaseInteractionEnv):
    """One episode. Sync: it runs in a thread."""

    deterministic = True

    def __init__(self, game: Any, seed: int) -> None:
        self._game = game
        self._seed = seed
        self._random = random.Random(seed).getstate()

    def opening(self) -> str:
        """Starts the game; its prompt."""
        self._play(lambda: self._game.reset(num_players=1, seed=self._seed))
        return self._news()

    def reset(self) -> tuple[Observation, Info]:
        """The opening is the prompt."""
        self.opening()
        return {}, {}

    def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Gives the game an answer, which it reads itself; what it cannot read, it says."""
        done, info = self._play(lambda: self._game.step(response_text))
        if not done:
            return {"obs_str": self._news()}, False, info
        rewards, _ = self._game.close()
        return {}, True, {**info, "reward": float(rewards[0])}

    def _news(self) -> str:
        """What the game has said since the last look, without what the player said itself."""
        _, messages = self._play(self._game.get_observation)
        return "\n".join(text for _, text, kind in messages if kind.name != "PLAYER_ACTION")

    def _play(self, call: Callable[[], Result]) -> Result:
        with _TURN:
            others = random.getstate()
            random.setstate(self._random)
            try:
                return call()
            finally:
                self._random = random.getstate()
                random.setstate(others)


def _make(name: Any, options: Mapping[str, Any]) -> Any:
    if not name:
        raise EnvironmentLoadError("environment.args.id is missing: name a game, for instance GuessTheNumber-v0")
    try:
        import textarena  # noqa: PLC0415 - an extra: only runs that use it need it
    except ImportError as error:
        raise EnvironmentLoadError("environment.path='textarena' needs `pip install textarena`") from error
    try:
        return textarena.make(f"{name}-raw", **options)
    except (TypeError, ValueError, ImportError) as error:
        raise EnvironmentLoadError(f"environment.args.id={name!r} with these options: {error}") from error
