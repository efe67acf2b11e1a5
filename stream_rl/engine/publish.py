"""New weights for every engine, while their requests wait half done.

    pause ─► load version T ─► flush ─► does it say T? ─► continue        all engines at once, one deadline

    retract    requests wait, and everything is prefilled again by the new weights: no token is ever computed from a
               cache of older ones. The default
    abort      requests end with what they have, and their turns go on by new ones; as exact, a second slower
    in_place   requests go on from the older weights' cache, and nothing is flushed: a flush would be refused after the
               weights are live, and leave the engine and its answers with different versions. Producers then keep
               prefixes apart by group (`extra_key`), and an engine that overlaps batches, whose stamps are off by one
               token, is refused

An engine that fails is reported and the others go on; whoever publishes keeps it from serving. It stays paused: its
weights may be half changed, and no token may come of them under the older version's name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stream_rl.engine.client import EngineClient, PauseMode
from stream_rl.errors import EngineError, EngineRejected, WeightUpdateFailed
from stream_rl.metrics import catalog
from stream_rl.sample import WeightVersion
from stream_rl.stopwatch import timed

__all__ = [
    "GROUP",
    "UPDATE_PARTS",
    "EngineUpdate",
    "WeightPublisher",
    "close_update",
    "count",
    "failure",
    "resume",
    "unless_absent",
]

logger = logging.getLogger(__name__)

GROUP = "stream_rl"
RESUME_SECONDS = 5.0
UPDATE_PARTS = ("update", "pause", "transfer")
"""All that an update takes; how much of it an engine stands still; how much of that weights travel and are loaded."""


@dataclass(frozen=True, slots=True)
class EngineUpdate:
    """What became of one engine's update: the seconds it took, by UPDATE_PARTS, and why it failed, if it did."""

    engine_id: str
    seconds: Mapping[str, float]
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the engine serves the new version."""
        return self.error is None


class WeightPublisher:
    """Publishes from a folder that the engines can read. For one event loop; close it at the end.

    Args:
        timeout: seconds that one engine's update may take.
        pause_mode: what becomes of running requests.
    """

    def __init__(self, *, timeout: float = 60.0, pause_mode: PauseMode = "retract") -> None:
        self.timeout = timeout
        self._pause_mode = pause_mode
        self._clients: dict[str, EngineClient] = {}

    @property
    def flushes(self) -> bool:
        """Whether an update forgets every cached prefix."""
        return self._pause_mode != "in_place"

    async def publish(
        self, engines: Iterable[tuple[str, str]], version: WeightVersion, path: Path
    ) -> list[EngineUpdate]:
        """Gives every engine (engine id, url) the weights in the Hugging Face folder `path`, as `version`.

        Returns one result for each engine, in their order; raises nothing for an engine's failure.
        """

        async def load(client: EngineClient, seconds: dict[str, float]) -> None:
            with timed(seconds, "pause"):
                await self.pause(client)
                with timed(seconds, "transfer"):
                    await client.update_weights_from_disk(path, version, flush=self.flushes, timeout=self.timeout)
                await resume(client, version)

        updates = await self._on_each(engines, load)
        count(updates)
        return updates

    async def pause(self, client: EngineClient) -> None:
        """Stops an engine's generation for an update. Raises WeightUpdateFailed where its stamps would be wrong."""
        if self._pause_mode == "in_place" and (await client.server_info()).overlaps:
            raise WeightUpdateFailed(
                f"engine {client.url} overlaps batches and would stamp tokens wrongly under engine.pause_mode="
                "in_place: start it with --disable-overlap-schedule, or set engine.pause_mode to retract"
            )
        await client.pause(self._pause_mode, timeout=self.timeout)

    async def stop(self, url: str) -> None:
        """Stops an engine that must not generate; one that does not answer does not generate either."""
        if (error := await failure(self.client(url).pause(self._pause_mode), self.timeout)) is not None:
            logger.warning("engine %s could not be stopped: %s", url, error)

    async def recover(self, engines: Iterable[tuple[str, str]]) -> list[EngineUpdate]:
        """Puts in order what a trainer that died left behind: a group, a pause. Harmless on an engine that is in order.

        One that was left in the middle of an update has failed, and stays paused.
        """

        async def tidy(client: EngineClient, _seconds: dict[str, float]) -> None:
            await unless_absent(client.destroy_weights_group(GROUP, timeout=self.timeout))
            if await close_update(client):
                await client.begin_weight_update()  # for whoever comes next, should this trainer die as well
                raise WeightUpdateFailed(f"engine {client.url} was left in the middle of an update")
            await client.continue_(timeout=RESUME_SECONDS)

        return await self._on_each(engines, tidy)

    async def close(self) -> None:
        """Closes the connections."""
        for client in self._clients.values():
            await client.close()

    def client(self, url: str) -> EngineClient:
        """The connection to one engine; it sends no tokens, so it needs no vocabulary."""
        if url not in self._clients:
            self._clients[url] = EngineClient(url, vocab_size=1, attempts=3)
        return self._clients[url]

    async def _on_each(
        self, engines: Iterable[tuple[str, str]], act: Callable[[EngineClient, dict[str, float]], Awaitable[None]]
    ) -> list[EngineUpdate]:
        async def one(engine_id: str, url: str) -> EngineUpdate:
            seconds = dict.fromkeys(UPDATE_PARTS, 0.0)
            with timed(seconds, "update"):
                error = await failure(act(self.client(url), seconds), self.timeout)
            return EngineUpdate(engine_id, seconds, error)

        return await asyncio.gather(*(one(engine_id, url) for engine_id, url in engines))


async def failure(action: Awaitable[None], timeout: float) -> str | None:
    """Why `action` failed, by an engine's fault or after `timeout` seconds; None if it did not."""
    try:
        async with asyncio.timeout(timeout):
            await action
    except EngineError as error:
        return str(error)
    except TimeoutError:
        return f"not done in {timeout:g} s"
    return None


def count(updates: Iterable[EngineUpdate]) -> None:
    """Observes the seconds of the updates that succeeded."""
    for update in updates:
        if update.ok:
            catalog.PUBLISH_SECONDS.observe(update.seconds["update"], engine=update.engine_id)
            catalog.PAUSE_SECONDS.observe(update.seconds["pause"], engine=update.engine_id)
            catalog.TRANSFER_SECONDS.observe(update.seconds["transfer"], engine=update.engine_id)


async def resume(client: EngineClient, version: WeightVersion) -> None:
    """Lets generation go on. Raises WeightUpdateFailed, before it does, when the engine does not say `version`."""
    served = await client.weight_version()
    if served != version:
        raise WeightUpdateFailed(f"engine {client.url} serves version {served} after an update to {version}")
    await client.continue_(timeout=RESUME_SECONDS)


async def close_update(client: EngineClient) -> bool:
    """Closes an update that is open. Whether one was: then the weights may be half changed."""
    try:
        await client.end_weight_update(timeout=RESUME_SECONDS)
    except EngineRejected:
        return False
    return True


async def unless_absent(undo: Awaitable[None]) -> None:
    """Awaits a call that undoes something; an engine with nothing to undo answers 4xx, and that is as good."""
    try:
        await undo
    except EngineRejected as error:
        logger.debug("nothing to undo: %s", error)
