"""A one-player game of the `textarena` package, for instance GuessTheNumber.

    environment.args.id        the game, for instance `GuessTheNumber-v0`
    environment.args.options   its settings, for instance `{max_number: 8, max_turns: 4}`

The prompt is the game's own; after that the model sees what is new. The game's reward comes with its last turn, so the
game's own `max_turns` should not be more than `rollout.max_turns`. Every episode has its own seed, so it is resumed by
playing it again.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from stream_rl.envs.arguments import options_of, reason
from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.envs.labels import label_parts, whole_number
from stream_rl.errors import EnvironmentLoadError
from stream_rl.suggestion import did_you_mean

__all__ = ["TextArena", "build_env", "prompt"]

OWN_WORDS = "PLAYER_ACTION"


class _Dice(threading.local):
    """In textarena's modules in the place of Python's `random`: in each thread the dice of the game that it plays."""

    thrown: random.Random | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.thrown if hasattr(self.thrown, name) else random, name)


_DICE = _Dice()


def prompt(seed: int, index: int, args: Any) -> dict[str, Any]:
    """The game's prompt; the label is the seed of the episode."""
    episode = random.Random(f"textarena {seed} {index}").randrange(2**31)
    name, options = getattr(args, "id", None), options_of("options", getattr(args, "options", None))
    _check(name, orjson.dumps(options))
    return {"prompt": TextArena(name, options, episode).opening(), "label": {"seed": episode}}


def build_env(
    sample: Any = None,
    args: Any = None,
    *,
    id: Any = None,  # noqa: A002 - textarena's own name of it
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> TextArena:
    """An episode with the seed of `sample.label` ({"seed"}). Raises EnvironmentLoadError or DataError."""
    (seed,) = label_parts(sample.label, "textarena", "seed")
    return TextArena(id, options_of("options", options), whole_number(seed, "textarena", 0))


class TextArena(BaseInteractionEnv):
    """One episode. Sync: it runs in a thread. Raises EnvironmentLoadError for a game that there is not."""

    deterministic = True

    def __init__(self, name: Any, options: Mapping[str, Any], seed: int) -> None:
        self._name = name
        self._seed = seed
        self._dice = random.Random(seed)
        with self._throwing():
            self._game = _make(name, options)

    def opening(self) -> str:
        """Starts the game; its prompt. Raises EnvironmentLoadError where one player cannot play it."""
        try:
            with self._throwing():
                self._game.reset(num_players=1, seed=self._seed)
            return self._news()
        except Exception as error:  # games of several players raise what they like
            raise EnvironmentLoadError(
                f"environment.args.id={self._name!r} does not start for one player: {reason(error)}"
            ) from error

    def reset(self) -> tuple[Observation, Info]:
        """The opening is the prompt."""
        self.opening()
        return {}, {}

    def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Gives the game an answer, which it reads itself; what it cannot read, it says."""
        with self._throwing():
            done, info = self._game.step(response_text)
        if not done:
            return {"obs_str": self._news()}, False, info
        rewards, _ = self._game.close()
        return {}, True, {**info, "reward": float(rewards[0])}

    def _news(self) -> str:
        """What the game has said since the last look, without what the player said itself.

        Some games write the player's words down with text in the place of their kind.
        """
        with self._throwing():
            _, messages = self._game.get_observation()
        return "\n".join(text for _, text, kind in messages if getattr(kind, "name", OWN_WORDS) != OWN_WORDS)

    @contextlib.contextmanager
    def _throwing(self) -> Iterator[None]:
        """What the game draws in this thread, it draws from its own dice."""
        _DICE.thrown = self._dice
        try:
            yield
        finally:
            _DICE.thrown = None


@functools.lru_cache(maxsize=16)
def _check(name: Any, options: bytes) -> None:
    """A game that draws from elsewhere would be another one than its prompt says, and could not be played again."""
    one, other = (TextArena(name, orjson.loads(options), 1).opening() for _ in range(2))
    if one != other:
        raise EnvironmentLoadError(
            f"environment.args.id={name!r} starts in different ways from one seed, so that it could not be resumed: "
            "name another game"
        )


def _make(name: Any, options: Mapping[str, Any]) -> Any:
    if not name:
        raise EnvironmentLoadError("environment.args.id is missing: name a game, for instance GuessTheNumber-v0")
    try:
        import textarena  # noqa: PLC0415 - an extra: only runs that use it need it
        from textarena.envs.registration import ENV_REGISTRY  # noqa: PLC0415 - as above
    except ImportError as error:
        raise EnvironmentLoadError("environment.path='textarena' needs `pip install textarena`") from error
    spec = ENV_REGISTRY.get(f"{name}-raw")
    if spec is None:
        hint = did_you_mean(str(name), _games(ENV_REGISTRY), "docs/games.md says which there are", likeness=0.5)
        raise EnvironmentLoadError(f"environment.args.id={name!r} is no game of textarena: {hint}")
    try:
        importlib.import_module(spec.entry_point.partition(":")[0])
        _lend_dice()
        return textarena.make(f"{name}-raw", **options)
    except Exception as error:  # a game may raise anything for options that it does not like
        raise EnvironmentLoadError(f"environment.args.id={name!r} with these options: {reason(error)}") from error


def _lend_dice() -> None:
    """Games draw from the one `random` of Python: what they call by this name becomes the dice of each."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "textarena" and getattr(module, "random", None) is random:
            module.random = _DICE  # type: ignore[attr-defined]


def _games(registry: Mapping[str, Any]) -> list[str]:
    return [name.removesuffix("-raw") for name in registry if name.endswith("-raw")]
