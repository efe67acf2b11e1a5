"""A fake engine's requests, and how long they take."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

__all__ = ["INSTANT", "FakeRequest", "Latency"]


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds a request takes: `prefill` once, then for each token the larger of `token` and running / `capacity`.

    `capacity` is the tokens a second that all running requests share; without it they do not slow each other.
    """

    prefill: float = 0.0
    token: float = 0.0
    capacity: float | None = None

    def of_token(self, running: int) -> float:
        """Seconds for one token of one of `running` requests."""
        return self.token if self.capacity is None else max(self.token, running / self.capacity)


INSTANT = Latency()


@dataclass(eq=False, slots=True)
class FakeRequest:
    """One request: what was asked, and what has been written so far.

    `image_tokens` is what its images are to the model beyond the one placeholder that each has in `prompt`.
    """

    rid: str
    prompt: list[int]
    max_new_tokens: int
    stop_token_ids: frozenset[int]
    image_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    finish_reason: str = "length"
    queue_seconds: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def length(self) -> int:
        """Of the prompt, in tokens of the model."""
        return len(self.prompt) + self.image_tokens

    def result(self, version: str) -> dict[str, Any]:
        """The server's answer; `version` is named when no token was written."""
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": {"type": self.finish_reason},
            "weight_version": self.versions[-1] if self.versions else version,
            "weight_versions": self._spans(),
            "output_token_logprobs": [
                [log_prob, token, None] for log_prob, token in zip(self.log_probs, self.tokens, strict=True)
            ],
            "completion_tokens": len(self.tokens),
            "queue_time": self.queue_seconds,
        }
        if self.finish_reason != "abort" or self.tokens:
            meta |= {"prompt_tokens": self.length, "cached_tokens": 0}
        return {"output_ids": self.tokens, "meta_info": meta}

    def _spans(self) -> list[dict[str, Any]]:
        spans, at = [], 0
        for version, run in itertools.groupby(self.versions):
            end = at + len(list(run))
            spans.append({"version": version, "start": at, "end": end})
            at = end
        return spans
