"""Ports for what a run starts on its own machine."""

from __future__ import annotations

import socket

__all__ = ["HOST", "free_port"]

HOST = "127.0.0.1"


def free_port() -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])
