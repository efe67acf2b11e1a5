"""What the engines' keepers and the trainer ask of the buffer: who serves which version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from stream_rl.buffer.connection import Connection
from stream_rl.buffer.records import EngineRecord
from stream_rl.sample import WeightVersion

__all__ = ["EngineCalls", "engine_records"]


class EngineCalls:
    """The engines' side of TrajectoryBuffer. All of these raise BufferUnavailable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._served: dict[str, tuple[WeightVersion, int | None]] = {}

    async def engine_joined(self, engine_id: str, url: str, pid: int) -> None:
        """Registers an engine that has no weights yet: it counts for nothing until it serves."""
        await self._connection.script("engine_joined", engine_id, orjson.dumps({"url": url, "pid": pid}))

    async def engine_serving(self, engine_id: str, version: WeightVersion, pid: int | None = None) -> None:
        """Records that the engine now serves `version`. A version older than its newest one is ignored.

        With `pid`, that server process must still be the one behind the engine's name: one that was started again
        since has not got these weights.

        Raises:
            ValueError: the engine has not joined (or is another process now), or a live group is stamped with a newer
                version, so that tokens of this engine would break that group's v0.
        """
        reply = await self._serve(engine_id, version, pid)
        if reply[0] == b"unknown":
            raise ValueError(f"engine {engine_id} has not joined")
        if reply[0] == b"another":
            raise ValueError(f"engine {engine_id} is no longer process {pid}: it was started again without weights")
        if reply[0] == b"older":
            raise ValueError(f"engine {engine_id} has version {version}, older than v0 {int(reply[1])} of a live group")
        self._served[engine_id] = (version, pid)

    async def serve_again(self) -> None:
        """Records once more what this client gave the engines: Redis may have lost it, and admits nothing while it
        believes them far behind. An engine that it does not know now is its keeper's to bring back.
        """
        for engine_id, (version, pid) in self._served.items():
            await self._serve(engine_id, version, pid)

    async def engine_left(self, engine_id: str) -> None:
        """Forgets an engine; the oldest serving version is counted without it."""
        await self._connection.script("engine_left", engine_id)
        self._served.pop(engine_id, None)

    async def engines(self) -> list[EngineRecord]:
        """Every engine that has joined and not left, by id."""
        names = [self._connection.key(name) for name in ("engines", "versions")]
        known, versions = await self._connection.pipeline(lambda pipe: [pipe.hgetall(name) for name in names])
        return engine_records(known, versions)

    async def _serve(self, engine_id: str, version: WeightVersion, pid: int | None) -> list[Any]:
        reply: list[Any] = await self._connection.script(
            "engine_serving", engine_id, version.step, version.incarnation, "" if pid is None else pid
        )
        return reply


def engine_records(known: Mapping[bytes, bytes], versions: Mapping[bytes, bytes]) -> list[EngineRecord]:
    """The engines as the hashes of the same names have them."""
    records = []
    for engine, text in sorted(known.items()):
        about, version = orjson.loads(text), versions.get(engine)
        records.append(
            EngineRecord(
                engine.decode(), about["url"], about["pid"], "serving" if version else "joining",
                WeightVersion.parse(version.decode()) if version else None,
            )
        )  # fmt: skip
    return records
