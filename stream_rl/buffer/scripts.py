"""The Lua files as Redis runs them: the file's first line (`#!lua flags=...`), what it uses of the keys' names and the
shared parts, and the file.

Flags: scripts that free memory or keep the run alive carry `allow-oom`, so that a full server still trains, retires and
takes samples back; those that store data are refused when the server is full.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
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
    source = "\n".join([first, *_used(body), _code(body)])
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _code(text: str) -> str:
    """Lua without its comments, which would travel and be hashed with it."""
    return re.sub(r"^ *--.*\n", "", text, flags=re.MULTILINE)


def _used(body: str) -> list[str]:
    """The shared definitions that a script needs, in order: each of the others would cost every call 0.1 us."""
    shared = [part for text in (keys.lua_names(), *map(read, _PARTS)) for part in _definitions(_code(text))]
    needed: list[str] = []
    words = set(re.findall(r"\w+", _code(body)))
    for name, text in reversed(shared):
        if name in words:
            needed.insert(0, text)
            words |= set(re.findall(r"\w+", text))
    return needed


def _definitions(text: str) -> Iterator[tuple[str, str]]:
    """Each local of a file, by name, with all that follows it until the next."""
    for part in re.split(r"^(?=local )", text, flags=re.MULTILINE):
        if match := re.match(r"local (?:function )?(\w+)", part):
            yield match[1], part


SCRIPTS = {path.stem: build(path.stem) for path in sorted(FOLDER.glob("*.lua")) if path.stem not in _PARTS}
