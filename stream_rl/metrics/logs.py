"""What a process writes into its log: lines for people, or JSON objects for machines."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import orjson

from stream_rl.metrics.playing import current

__all__ = ["JsonFormatter", "log_formatter"]

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time (RFC 3339), level, logger, message, process, run, and in an episode group, sample,
    turn and lease; `error` is the traceback.

    Args:
        run: the run's name.
        process: whose log it is.
    """

    def __init__(self, run: str, process: str) -> None:
        super().__init__()
        self._run = run
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": self._process,
            "run": self._run,
        }
        if (sample := current()) is not None:
            line |= {"group": sample.group, "sample": sample.sample, "turn": sample.turn, "lease": sample.lease}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        # A file's name or a tool's answer need not be UTF-8, and a line that fails to be written is lost.
        line = {name: _utf_8(value) if isinstance(value, str) else value for name, value in line.items()}
        return orjson.dumps(line, default=str).decode()


def _utf_8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def log_formatter(run: str, process: str, *, json: bool) -> logging.Formatter:
    """What setting `metrics.json_logs` asks for."""
    return JsonFormatter(run, process) if json else logging.Formatter(TEXT)
