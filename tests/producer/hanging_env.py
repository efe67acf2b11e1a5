"""An environment that does what its action says, bad things too."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stream_rl.envs.base import BaseInteractionEnv
from stream_rl.errors import ActionError, EnvInfraError


def build_env(sample: Any = None, args: Any = None, **_: Any) -> Obedient:
    return Obedient(sample.label, getattr(args, "marker", None))


def prompt(seed: int, index: int, args: Any = None) -> dict[str, Any]:
    return {"prompt": "guess", "label": index}


class Unpicklable(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("no way to make me again")


class Unsendable(EnvInfraError):
    def __init__(self) -> None:
        super().__init__("with a lock")
        self.lock = threading.Lock()


FAILURES: dict[str, Callable[[], BaseException]] = {
    "break": lambda: Unpicklable(1, 2),
    "break with a lock": Unsendable,
    "exit": SystemExit,
    "cancel": asyncio.CancelledError,
}


class Obedient(BaseInteractionEnv):
    def __init__(self, label: Any, marker: str | None = None) -> None:
        self.label = label
        self.marker = None if marker is None else Path(marker)
        self.steps = 0

    def reset(self):
        return {"obs_str": f"label {self.label}"}, {}

    def step(self, response_text: str):
        self.steps += 1
        match response_text:
            case "2" if self.marker is not None and not self.marker.exists():
                self.marker.touch()
                time.sleep(5)
            case "sleep":
                time.sleep(60)
            case "hold":
                ctypes.PyDLL(None).sleep(60)  # with the interpreter's lock
            case "hang up":  # and stop before the process can end
                sys.setswitchinterval(60)
                libc = ctypes.PyDLL(None)  # keeps the interpreter's lock
                # Looked for before: that gives the lock away, and the reader of a closed socket ends the process.
                for number in [int(link.name) for link in Path("/proc/self/fd").iterdir() if link.is_socket()]:
                    libc.shutdown(number, socket.SHUT_RDWR)
                libc.kill(os.getpid(), signal.SIGSTOP)
            case "die":
                os._exit(3)
            case "misspell":
                raise ActionError("what?", reward=-1.0)
            case "break" | "break with a lock" | "exit" | "cancel":
                raise FAILURES[response_text]()
            case "return a function":
                return {}, False, {"reward": 0.0, "function": lambda: None}
        return {"obs_str": response_text}, response_text == "end", {"reward": 1.0}

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]

    def format_observation(self, observation):
        return {"role": "user", "content": f"{self.steps}: {observation['obs_str']}"}
