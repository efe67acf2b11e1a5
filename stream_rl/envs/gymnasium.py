"""A toy-text game of the `gymnasium` package (FrozenLake, CliffWalking, Taxi, Blackjack), played in words.

    environment.args.id        the game, for instance `FrozenLake-v1`
    environment.args.options   its settings, for instance `{is_slippery: false}`
    environment.args.actions   words for the actions 0, 1, ...; the four games above have theirs

The model sees the game as text, with brackets for colours, and answers with one of the words. The reward is the game's.
Every episode has its own seed, so it is resumed by playing it again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from stream_rl.envs.arguments import options_of, reason, words_of
from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.envs.labels import label_parts, whole_number
from stream_rl.errors import ActionError, EnvironmentLoadError

__all__ = ["ToyText", "build_env", "plain", "prompt"]

ACTIONS = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
}
LEGENDS = {
    "FrozenLake": "You stand in [brackets]. Reach G over frozen tiles (F); in a hole (H) the game is lost.",
    "CliffWalking": "You are x. Reach T; who steps on the cliff (C) starts again.",
    "Taxi": "The taxi stands in [brackets], the passenger in (parentheses), the destination in <angles>. "
    "Pick the passenger up and drop it off there; | is a wall.",
    "Blackjack": "You see (the sum of your cards, the dealer's card, whether you have a usable ace).",
}
_COLOURED = re.compile(r"\x1b\[(\d+)((?:;\d+)*)m(.*?)\x1b\[0m")
_FIRST_BACKGROUND = 40


def prompt(seed: int, index: int, args: Any) -> dict[str, Any]:
    """The game's name and its actions; the label is the seed of the episode."""
    name = _name(getattr(args, "id", None))
    words, game = ", ".join(_words(name, getattr(args, "actions", None))), name.partition("-")[0]
    lines = [f"We play {game}.", LEGENDS.get(game), f"Answer every time with one action: {words}."]
    episode = random.Random(f"gymnasium {seed} {index}").randrange(2**31)
    return {"prompt": " ".join(line for line in lines if line), "label": {"seed": episode}}


def build_env(
    sample: Any = None,
    args: Any = None,
    *,
    id: Any = None,  # noqa: A002 - gymnasium's own name of it
    options: Mapping[str, Any] | None = None,
    actions: Sequence[str] | None = None,
    **_: Any,
) -> ToyText:
    """An episode with the seed of `sample.label` ({"seed"}). Raises EnvironmentLoadError or DataError."""
    (seed,) = label_parts(sample.label, "gymnasium", "seed")
    name = _name(id)
    words = _words(name, actions)
    game = _make(name, options_of("options", options))
    _check_actions(name, game, words)
    return ToyText(game, words, whole_number(seed, "gymnasium", 0))


class ToyText(BaseInteractionEnv):
    """One episode. Sync: it runs in a thread, as games of one's own may be slow."""

    deterministic = True

    def __init__(self, game: Any, actions: Sequence[str], seed: int) -> None:
        self._game = game
        self._actions = actions
        self._seed = seed

    def reset(self) -> tuple[Observation, Info]:
        """The game at its start."""
        seen, info = self._game.reset(seed=self._seed)
        return {"obs_str": self._shown(seen)}, info

    def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Takes an action. Raises ActionError for what is none."""
        word = response_text.strip().strip(".").lower()
        if word not in self._actions:
            raise ActionError(f"Answer with one of: {', '.join(self._actions)}.")
        seen, reward, terminated, truncated, _ = self._game.step(self._actions.index(word))
        return {"obs_str": self._shown(seen)}, bool(terminated or truncated), {"reward": float(reward)}

    def close(self) -> None:
        """Closes the game."""
        self._game.close()

    def _shown(self, seen: Any) -> str:
        return plain(self._game.render()) if self._game.render_mode == "ansi" else str(seen)


def plain(coloured: str) -> str:
    """A text rendering with marks for its colours: [ground], (bold), <any other>."""

    def mark(found: re.Match[str]) -> str:
        if int(found[1]) >= _FIRST_BACKGROUND:
            return f"[{found[3]}]"
        return f"({found[3]})" if found[2] else f"<{found[3]}>"

    return _COLOURED.sub(mark, coloured).strip("\n")


def _name(name: Any) -> str:
    """The name of a game that there is."""
    if not name:
        raise EnvironmentLoadError("environment.args.id is missing: name a toy-text game, for instance FrozenLake-v1")
    gymnasium = _gymnasium()
    try:
        gymnasium.spec(str(name))
    except gymnasium.error.Error as error:
        raise EnvironmentLoadError(f"environment.args.id={name!r} is no game of gymnasium: {reason(error)}") from error
    return str(name)


def _words(name: str, given: Any) -> tuple[str, ...]:
    words = words_of("actions", given) or ACTIONS.get(name.partition("-")[0])
    if not words:
        raise EnvironmentLoadError(
            f"environment.args.actions is missing: the words for the actions of {name!r}, in order"
        )
    return words


def _check_actions(name: str, game: Any, words: Sequence[str]) -> None:
    count = getattr(game.action_space, "n", None)
    if count is None:
        raise EnvironmentLoadError(
            f"environment.args.id={name!r} has no numbered actions that words could name: name a toy-text game"
        )
    if count != len(words):
        raise EnvironmentLoadError(
            f"environment.args.actions has {len(words)} words, and {name} has {count} actions: give one for each"
        )


def _make(name: str, options: Mapping[str, Any]) -> Any:
    gymnasium = _gymnasium()
    try:
        modes = gymnasium.spec(name).entry_point
        return gymnasium.make(name, **{"render_mode": _mode(gymnasium, modes), **options})
    except Exception as error:  # a game may raise anything for options that it does not like
        raise EnvironmentLoadError(f"environment.args.options={dict(options)} of {name}: {reason(error)}") from error


def _mode(gymnasium: Any, entry_point: Any) -> str | None:
    modes = gymnasium.envs.registration.load_env_creator(entry_point).metadata.get("render_modes", ())
    return "ansi" if "ansi" in modes else None


def _gymnasium() -> Any:
    try:
        import gymnasium  # noqa: PLC0415 - an extra: only runs that use it need it
    except ImportError as error:
        raise EnvironmentLoadError("environment.path='gymnasium' needs `pip install gymnasium`") from error
    return gymnasium
