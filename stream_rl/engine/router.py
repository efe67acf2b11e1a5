"""An sglang-router in front of the engines, as a client of its own: it picks the engine for each generation.

It answers 404 to aborts, so those go to every engine behind it; the engine that does not know the name does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from stream_rl.engine.client import CONTROL_SECONDS, EngineClient
from stream_rl.engine.transport import Transport

__all__ = ["RouterClient"]


class RouterClient(EngineClient):
    """Generates through the router at `url`; `follow` says which engines stand behind it."""

    def __init__(self, url: str, *, vocab_size: int, attempts: int = 6) -> None:
        super().__init__(url, vocab_size=vocab_size, attempts=attempts)
        self._engines: dict[str, Transport] = {}

    async def follow(self, urls: Iterable[str]) -> None:
        """Sets the engines that aborts go to."""
        named = set(urls)
        gone = [self._engines.pop(url) for url in self._engines.keys() - named]
        self._engines |= {url: Transport(url) for url in named - self._engines.keys()}
        for transport in gone:
            await transport.close()

    async def abort(self, rid: str, *, timeout: float = CONTROL_SECONDS) -> None:
        """As EngineClient's, on whichever engine has the request."""
        if (name := self._attempts_of.get(rid)) is not None:
            body = {"rid": name}
            calls = [each.call("POST", "/abort_request", body, timeout=timeout) for each in self._engines.values()]
            await asyncio.gather(*calls)

    async def close(self) -> None:
        """Closes the connections to the router and to the engines."""
        await self.follow(())
        await super().close()
