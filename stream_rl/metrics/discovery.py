"""Prometheus HTTP service discovery: where the processes of runs show their metrics.

    GET / ─► [{"targets": ["10.0.0.3:41023"], "labels": {"run": "demo-0", "kind": "engine", "instance": "engine-0"}}]

A process keeps its name over restarts, and so its series: counters begin anew in them, which rates see.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypedDict
from urllib.parse import urlsplit

import orjson

__all__ = ["Target", "discovery_server", "target"]

logger = logging.getLogger(__name__)


class Target(TypedDict):
    """What Prometheus scrapes, and the labels that it gives all of it."""

    targets: list[str]
    labels: dict[str, str]


def target(run: str, kind: str, name: str, url: str) -> Target:
    """One process's target, from the URL of its metrics or, for an engine, of its server."""
    address = urlsplit(url)
    labels = {"run": run, "kind": kind, "instance": name}
    if address.path not in ("", "/", "/metrics"):
        labels["__metrics_path__"] = address.path.rstrip("/") + "/metrics"
    if address.scheme == "https":
        labels["__scheme__"] = "https"
    return Target(targets=[address.netloc], labels=labels)


def discovery_server(host: str, port: int, look: Callable[[], Iterable[Mapping[str, Any]]]) -> ThreadingHTTPServer:
    """A server that answers every GET with what `look` finds then; call its `serve_forever`. Raises OSError."""

    class Answer(BaseHTTPRequestHandler):
        """One request. A look that fails is a 503, so that Prometheus keeps the targets that it had."""

        def do_GET(self) -> None:
            """Looks, and answers."""
            try:
                found, status = orjson.dumps(list(look())), HTTPStatus.OK
            except Exception as error:  # whatever it is, the server goes on
                logger.warning("no targets: %s", error)
                found, status = str(error).encode(), HTTPStatus.SERVICE_UNAVAILABLE
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base's
            """Says nothing: Prometheus asks every few seconds."""

    return ThreadingHTTPServer((host, port), Answer)
