"""Serves this process's metrics over HTTP, from a daemon thread that ends with the process."""

from __future__ import annotations

import errno
import socket

from prometheus_client import start_http_server

from stream_rl.errors import ConfigError

__all__ = ["serve_metrics"]

EVERYWHERE = ("0.0.0.0", "::", "")
"""Hosts that mean every address of this machine: they are nobody's address."""


def serve_metrics(host: str, port: int | None = None) -> str:
    """Starts the /metrics server of this process and returns its URL, as other machines reach it.

    Args:
        host: address to listen on.
        port: port to listen on; None takes a free one.

    Raises:
        ConfigError: the port is taken, or the host is not an address of this machine.
    """
    try:
        server, _ = start_http_server(port or 0, addr=host)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"metrics.port={port} is taken on {host}: choose another, or leave it empty for a free one"
            ) from error
        raise ConfigError(f"cannot listen on metrics.host={host!r}, metrics.port={port}: {error.strerror}") from error
    reached = socket.getfqdn() if host in EVERYWHERE else host
    return f"http://{reached}:{server.server_port}/metrics"
