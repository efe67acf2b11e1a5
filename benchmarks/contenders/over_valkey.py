"""What contenders over the embedded Valkey share: the server, its death and return, its append-only file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

from contenders.contender import Contender
from stream_rl.buffer import EmbeddedServer


class OverValkey(Contender):
    """A contender whose broker is an embedded Valkey over its folder."""

    def __init__(self, folder: Path, seed: int, fsync: str = "everysec") -> None:
        super().__init__(folder, seed, fsync)
        self.server = EmbeddedServer(folder, fsync=cast(Literal["always", "everysec", "no"], fsync))

    def brokers(self) -> list[int]:
        return [self.server.pid]

    def revive(self) -> None:
        self.server.start()

    def disk_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("*.aof"))

    def __exit__(self, *_: object) -> None:
        self.server.stop()
