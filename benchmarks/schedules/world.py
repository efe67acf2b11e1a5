"""The environment of benchmarks/scheduling.py: it says how long the next turn is to be, and takes its time.

A prompt's episodes are drawn by its number; each sample takes the next of them. The number of tokens that the model is
to write stands as digits at the end of every observation, where the engine looks for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from stream_rl.envs.base import BaseInteractionEnv, Info, Observation
from stream_rl.tuning import Episode, GivenWorkload

DIGITS, TEMPLATE = 3, 8
"""Tokens of a message's end: the digits, and what the chat template puts around it."""
FILLER = "guess"

STARTED: list[int] = []
"""Tokens that each episode begun so far will have, in the order in which they began."""
_begun: Counter[int] = Counter()


def forget() -> None:
    """Before another run."""
    STARTED.clear()
    _begun.clear()


def prompt(_seed: int, index: int, args: Any) -> dict[str, Any]:
    """As many words as a prompt has tokens; the label is its number."""
    return {"prompt": FILLER, "label": index}


def build_env(sample: Any = None, args: Any = None, **_: Any) -> Episodes:
    """The next episode of the sample's prompt."""
    size, number = args.group_size, _begun[sample.label]
    _begun[sample.label] += 1
    group = GivenWorkload(**args.world).group(args.seed, sample.label, size)
    return Episodes(group[number % size])


class Episodes(BaseInteractionEnv):
    """Plays one episode as it was drawn."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._turn = 0

    async def reset(self) -> tuple[Observation, Info]:
        """Asks for the first turn."""
        STARTED.append(self._episode.tokens)
        return {"obs_str": self._asking(self._episode.prompt)}, {}

    async def step(self, response_text: str) -> tuple[Observation, bool, Info]:
        """Takes its seconds, and asks for the next turn, if there is one."""
        turn, self._turn = self._turn, self._turn + 1
        await asyncio.sleep(float(self._episode.env_seconds[turn]))
        if self._turn == len(self._episode.generated):
            return {}, True, {"reward": float(turn % 2)}
        return {"obs_str": self._asking(int(self._episode.observation[turn]))}, False, {"reward": 0.0}

    def _asking(self, tokens: int) -> str:
        digits = f"{int(self._episode.generated[self._turn]):0{DIGITS}d}"
        return " ".join([FILLER] * max(tokens - DIGITS - TEMPLATE, 0) + list(digits))
