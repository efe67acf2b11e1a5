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

    async def pin_engine(self, engine_id: str, seconds: float) -> bool:
        """Keeps an engine at the version that it serves until `release_engine`, at most for `seconds`.

        The trainer does not update it meanwhile. Where other engines serve, it counts as serving no more. The pin ends
        with the engine: one that joins anew has none.

        Returns:
            False when it does not serve.
        """
        return bool(await self._connection.script("engine_pinned", engine_id, round(1000 * seconds)))

    async def release_engine(self, engine_id: str) -> None:
        """Lets the trainer update a pinned engine again."""
        await self._connection.pipeline(lambda pipe: [pipe.hdel(self._connection.key("pins"), engine_id)])

    async def engines(self) -> list[EngineRecord]:
        """Every engine that has joined and not left, by id."""
        names = [self._connection.key(name) for name in ("engines", "versions", "pins")]
        known, versions, pins, (seconds, micros) = await self._connection.pipeline(
            lambda pipe: [*(pipe.hgetall(name) for name in names), pipe.time()]
        )
        now_ms = 1000 * seconds + micros // 1000
        pinned = {engine: until.split()[1] for engine, until in pins.items() if int(until.split()[0]) > now_ms}
        return engine_records(known, versions, pinned)

    async def _serve(self, engine_id: str, version: WeightVersion, pid: int | None) -> list[Any]:
        reply: list[Any] = await self._connection.script(
            "engine_serving", engine_id, version.step, version.incarnation, "" if pid is None else pid
        )
        return reply


def engine_records(
    known: Mapping[bytes, bytes], versions: Mapping[bytes, bytes], pinned: Mapping[bytes, bytes] | None = None
) -> list[EngineRecord]:
    """The engines as the hashes of the same names have them; `pinned` has the version of each that is pinned now."""
    records = []
    for engine, text in sorted(known.items()):
        about, version, pin = orjson.loads(text), versions.get(engine), (pinned or {}).get(engine)
        records.append(
            EngineRecord(
                engine.decode(), about["url"], about["pid"], "serving" if version else "joining",
                WeightVersion.parse(version.decode()) if version else None,
                WeightVersion.parse(pin.decode()) if pin else None,
            )
        )  # fmt: skip
    return records
