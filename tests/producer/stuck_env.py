"""An environment that hangs in its first step, if its label says so, in a world whose time is told by files.

`args.folder` holds them: a hanging step writes one named after its label; once `later` is there it is ten minutes
later, in the process that has the environment; `over` lets hanging steps go. A step that is tried again does not hang.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from stream_rl.envs.base import BaseInteractionEnv

LATER = 600.0


class Stuck(BaseInteractionEnv):
    deterministic = True

    def __init__(self, label: str, folder: Path) -> None:
        self.label, self.folder = label, folder

    def reset(self):
        return {}, {}

    def step(self, response_text: str):
        hanging = self.folder / self.label
        if self.label.startswith("hangs") and not hanging.exists():
            hanging.touch()
            while not (self.folder / "over").exists():
                time.sleep(0.01)
        return {"obs_str": "higher"}, False, {"reward": 1.0}


def tell_time_by(folder: Path) -> None:
    """Event loops of this process are `LATER` seconds on as soon as the file says so."""
    asyncio.BaseEventLoop.time = lambda _: time.monotonic() + LATER * (folder / "later").exists()  # type: ignore[method-assign]


def build_env(sample: Any = None, args: Any = None, **_: Any) -> Stuck:
    tell_time_by(Path(args.folder))
    return Stuck(sample.label, Path(args.folder))


def prompt(seed: int, index: int, args: Any = None) -> dict[str, Any]:
    return {"prompt": "guess", "label": "goes"}
