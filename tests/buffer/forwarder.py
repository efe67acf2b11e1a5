"""One TCP address in front of servers behind unix sockets: what a load balancer or a sentinel's virtual address is."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType


class Forwarder:
    """Forwards every connection to `target`, the path of a unix socket; may speak TLS to its clients."""

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        self._tls = tls
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Forwarder:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Breaks every connection; new ones go to what `target` is then."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self.target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, server_writer}
        self._writers |= ends
        try:
            await asyncio.gather(_pump(reader, server_writer), _pump(server_reader, writer))
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.transport.abort()
