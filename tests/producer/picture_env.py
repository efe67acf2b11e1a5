"""Shows new pictures every turn, of several sizes, and says what was answered; its pictures follow from seed and turn.

environment.args.images   pictures of the prompt and of every observation, 1 unless given
environment.args.first    a picture in the first observation, too
environment.args.faults   "corrupt": the second observation's picture is no image; "changing": no two episodes alike
"""

from __future__ import annotations

import itertools
import random
from typing import Any

from PIL import Image

from stream_rl.envs.base import BaseInteractionEnv

SIDE = 32
SIZES = ((1, 1), (2, 1), (1, 3))
_episodes = itertools.count()


def picture(seed: object, side: int = SIDE, number: int = 0) -> Image.Image:
    """A picture of a size of SIZES, its pixels made of the seed."""
    rows, columns = SIZES[number % len(SIZES)]
    size = (columns * side, rows * side)
    return Image.frombytes("RGB", size, random.Random(str(seed)).randbytes(3 * size[0] * size[1]))


def prompt(seed: int, index: int, args: Any) -> dict[str, Any]:
    """The word "where" and the pictures of turn -1."""
    shown = pictures(args, f"{seed} {index}", -1)
    parts = [{"type": "text", "text": "where"}, *({"type": "image", "image": one} for one in shown)]
    return {"prompt": [{"role": "user", "content": parts}], "label": f"{seed} {index}"}


def pictures(args: Any, seed: str, turn: int) -> list[Image.Image]:
    """The pictures of one turn."""
    count, side = getattr(args, "images", 1), getattr(args, "side", SIDE)
    return [picture(f"{seed} {turn} {number}", side, number + turn + 1) for number in range(count)]


def build_env(sample: Any = None, args: Any = None, **_: Any) -> PictureEnv:
    """An episode with the pictures of `sample.label`."""
    return PictureEnv(sample.label, args)


class PictureEnv(BaseInteractionEnv):
    deterministic = True

    def __init__(self, seed: str, args: Any) -> None:
        self.args = args
        self.faults = getattr(args, "faults", "")
        self.seed = f"{seed} {next(_episodes)}" if self.faults == "changing" else seed
        self.turn = 0
        self.was_cut = False

    def reset(self) -> Any:
        if not getattr(self.args, "first", False):
            return {}, {}
        return {
            "obs_str": "go",
            "multi_modal_data": {"images": [picture(self.seed, getattr(self.args, "side", SIDE))]},
        }, {}

    def step(self, response_text: str) -> Any:
        images: list[Any] = pictures(self.args, self.seed, self.turn)
        if self.faults == "corrupt" and self.turn == 1:
            images = [b"\x89PNG but no more"]
        self.turn += 1
        text = getattr(self.args, "text", "go")
        return {"obs_str": text, "multi_modal_data": {"images": images}}, False, {"reward": 0.5}

    def cut(self, response_text: str) -> Any:
        return {"reward": 0.25}
