"""The Lua files as Redis runs them: the file's first line (`#!lua flags=...`), the keys' names, shared parts, the file.

Flags: scripts that free memory or keep the run alive carry `allow-oom`, so that a full server still trains, retires and
takes samples back; those that store data are refused when the server is full.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from stream_rl.buffer import keys

__all__ = ["SCRIPTS", "read"]

FOLDER = Path(__file__).parent / "lua"
_PARTS = ("state", "scheduling")


@dataclass(frozen=True, slots=True)
class Script:
    """One script and the SHA1 that EVALSHA knows it by."""

    source: str
    sha: str


def read(name: str) -> str:
    """The text of `lua/<name>.lua`."""
    return (FOLDER / f"{name}.lua").read_text()


def build(name: str) -> Script:
    """The whole of one script."""
    first, _, body = read(name).partition("\n")
    assert first.startswith("#!lua"), f"{name}.lua must begin with its flags"
    source = "\n".join([first, keys.lua_names(), *(read(part) for part in _PARTS), body])
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


SCRIPTS = {path.stem: build(path.stem) for path in sorted(FOLDER.glob("*.lua")) if path.stem not in _PARTS}
