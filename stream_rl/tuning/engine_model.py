"""An engine of the simulator: requests share it, and its clock runs in tokens.

Every running request gets a token in each round, and a round takes `token_seconds + n * crowd_seconds`; reading prompts
and observations stops all rounds for its time. So a request of k tokens that starts in round r ends in round r + k
whatever comes and goes in between, and only the next end has to be known.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from stream_rl.tuning.machine import Machine

__all__ = ["Engine", "Request"]


@dataclass(eq=False, slots=True)
class Request:
    """One turn's generation. `written` maps versions to the tokens that they wrote, once the engine lets go of it.

    `context` are the tokens in front of it, `read` those of them that are new to the engine; the others are cached
    where its cache was not flushed since flush `cached_at`. It left the queue at `began_at`; `begun` is the engine's.
    """

    tokens: int
    read: int
    context: int
    then: Callable[[Request], None]
    written: dict[int, float] = field(default_factory=dict)
    cached_at: int = -1
    begun: float = 0.0
    began_at: float = 0.0


class Engine:
    """One engine. The simulator calls `advance` before it asks for anything, and `next_end` after each change."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._running: list[tuple[float, int, Request]] = []
        self._waiting: deque[Request] = deque()
        self._numbers = self._flushes = 0
        self._round = 0.0
        self._stalled = 0.0
        self._paused = False
        self._now = 0.0
        self.version = 0
        self.generated = 0.0
        """Tokens written so far."""

    @property
    def load(self) -> int:
        """Requests that run or wait here."""
        return len(self._running) + len(self._waiting)

    def advance(self, now: float) -> None:
        """Lets time pass until `now`."""
        seconds, self._now = now - self._now, now
        if self._paused or not self._running:
            return
        stalled = min(seconds, self._stalled)
        self._stalled -= stalled
        rounds = (seconds - stalled) / self._seconds_a_round()
        self._round += rounds
        self.generated += rounds * len(self._running)

    def next_end(self) -> float:
        """When the next request ends, if nothing else happens; infinite if none does."""
        if self._paused or not self._running:
            return float("inf")
        rounds = max(self._running[0][0] - self._round, 0.0)
        return self._now + self._stalled + rounds * self._seconds_a_round()

    def submit(self, request: Request) -> None:
        """Takes a request, which waits while all slots are used or the engine is paused."""
        self._waiting.append(request)
        self._fill()

    def end(self) -> Request:
        """Lets go of the request that ends now."""
        last_round, _, request = heapq.heappop(self._running)
        # A round may be too short to be told from now: time alone would leave the request unwritten.
        rounds = max(last_round - self._round, 0.0)
        self._round += rounds
        self.generated += rounds * (len(self._running) + 1)
        self._write_down(request)
        request.cached_at = self._flushes
        self._fill()
        return request

    def pause(self) -> None:
        """Stops all rounds for an update."""
        self._paused = True

    def resume(self, version: int) -> None:
        """Goes on with new weights; unless they are exchanged in place, every context is read anew."""
        for _, _, request in self._running:
            self._write_down(request)
        self.version, self._paused = version, False
        if self._machine.pause_mode != "in_place":
            self._flushes += 1
            contexts = sum(request.context + sum(request.written.values()) for _, _, request in self._running)
            self._stalled += contexts * self._machine.prefill_seconds
        self._fill()

    def _seconds_a_round(self) -> float:
        return self._machine.token_seconds + len(self._running) * self._machine.crowd_seconds

    def _write_down(self, request: Request) -> None:
        written = self._round - request.begun
        if written > 0:
            request.written[self.version] = request.written.get(self.version, 0.0) + written
        request.begun = self._round

    def _fill(self) -> None:
        while self._waiting and not self._paused and len(self._running) < self._machine.slots:
            request = self._waiting.popleft()
            read = request.read if request.cached_at == self._flushes else request.context
            self._stalled += read * self._machine.prefill_seconds
            request.begun, request.began_at, self._numbers = self._round, self._now, self._numbers + 1
            heapq.heappush(self._running, (self._round + request.tokens, self._numbers, request))
