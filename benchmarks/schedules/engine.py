"""Fake engines whose requests share them as those of a real one do: simulated decoding behind FakeEngineServer's HTTP.

The tokens of a request are not slept for one by one: the engine model of stream_rl.tuning says when the next request
ends, and until then there is nothing to do.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import orjson
from aiohttp import web

from schedules.world import DIGITS
from stream_rl.models.tiny_text import CONTEXT_LENGTH, WORDS
from stream_rl.testing import FakeEngineServer, scripted
from stream_rl.testing.fake_request import FakeRequest
from stream_rl.tuning import Machine
from stream_rl.tuning.engine_model import Engine, Request

END, WORD = WORDS.index("<|im_end|>"), WORDS.index("lower")
DIGIT = {WORDS.index(str(digit)): digit for digit in range(10)}
LOG_PROB = -0.6931471805599453


class AbortingEngine(Engine):
    """An engine model that lets go of a request before its end."""

    def withdraw(self, request: Request) -> None:
        """Takes a request out, with what was written of it."""
        if request in self._waiting:
            self._waiting.remove(request)
            return
        self._write_down(request)
        self._running = [entry for entry in self._running if entry[2] is not request]
        heapq.heapify(self._running)
        request.cached_at = self._flushes
        self._fill()


class SharedEngine(FakeEngineServer):
    """One engine of a machine."""

    def __init__(self, machine: Machine) -> None:
        # The slots are the model's.
        super().__init__(scripted([END]), vocab_size=len(WORDS), context_length=CONTEXT_LENGTH, max_running=1 << 20)
        self._machine = machine
        self._model = AbortingEngine(machine)
        self._cached: dict[str, tuple[int, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def _now(self) -> float:
        now = asyncio.get_running_loop().time()
        self._model.advance(now)
        return now

    def _wait(self) -> None:
        """Sets the timer to the next end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (end := self._model.next_end()) < float("inf"):
            self._timer = asyncio.get_running_loop().call_at(end, self._end)

    def _end(self) -> None:
        now = self._now()
        while self._model.next_end() <= now + 1e-9:
            request = self._model.end()
            request.then(request)
        self._wait()

    async def _decode(self, asked: FakeRequest) -> None:
        session, context = asked.rid.rstrip("/").rpartition("/")[0], len(asked.prompt)  # SESSION/TURN.ATTEMPT/
        tokens = min(wanted(asked.prompt), asked.max_new_tokens)
        known, cached_at = self._cached.get(session, (0, -1))
        ended = asyncio.get_running_loop().create_future()
        arrived = self._now()
        request = Request(tokens, context - known, context, lambda _: ended.set_result(None), cached_at=cached_at)
        self._model.submit(request)
        self._wait()
        try:
            await ended
        except asyncio.CancelledError:
            self._now()
            self._model.withdraw(request)
            self._wait()
            raise
        finally:
            fill(asked, request, None if ended.cancelled() else tokens)
            asked.queue_seconds = max(request.began_at - arrived, 0.0)
            self._cached[session] = context + len(asked.tokens), request.cached_at

    async def _control(self, http: web.Request) -> web.Response:
        """An update takes its time; everything stands still from the pause to its end."""
        what = http.match_info["control"]
        self._now()
        if what == "pause_generation":
            self._model.pause()
        if what.startswith("update_weights"):
            await asyncio.sleep(self._machine.update_seconds)
        answer = await super()._control(http)
        self._now()
        if what == "continue_generation":
            self._model.resume(int(self.version))
        self._wait()
        return answer

    async def _server_info(self, http: web.Request) -> web.Response:
        """Tells also how many tokens were written so far."""
        self._now()
        answer = await super()._server_info(http)
        assert isinstance(answer.body, bytes)
        return web.json_response({**orjson.loads(answer.body), "generated": self._model.generated})


def wanted(prompt: Sequence[int]) -> int:
    """The tokens that the last observation asks for, without those that stand there already."""
    written = 0
    while prompt[-1 - written] == WORD:
        written += 1
    digits: list[int] = []
    for token in reversed(prompt):
        if token in DIGIT:
            digits.append(DIGIT[token])
        if len(digits) == DIGITS:
            break
    return max(int("".join(map(str, reversed(digits)))) - written, 1)


def fill(asked: FakeRequest, request: Request, whole: int | None) -> None:
    """Writes into the HTTP request what the model says was written: all of it, or what an abort left."""
    total = int(sum(request.written.values())) if whole is None else whole
    versions: list[str] = []
    for version, tokens in sorted(request.written.items()):
        versions += [str(version)] * min(round(tokens), total - len(versions))
    versions += [str(max(request.written, default=0))] * (total - len(versions))
    asked.versions, asked.tokens, asked.log_probs = versions, [WORD] * total, [LOG_PROB] * total
    if whole is not None:
        asked.tokens[-1] = END
        asked.finish_reason = "stop"


async def serve(orders: Connection) -> None:
    """Starts the engines of each machine that is ordered, and ends those of the one before; None ends it all."""
    engines: list[SharedEngine] = []
    while True:
        order: dict[str, Any] | None = await asyncio.to_thread(orders.recv)
        for engine in engines:
            await engine.stop()
        if order is None:
            return
        machine = Machine(**order)
        engines = [SharedEngine(machine) for _ in range(machine.engines)]
        for engine in engines:
            await engine.start()
        orders.send([engine.url for engine in engines])


def run(orders: Connection) -> None:
    """The engines' process."""
    asyncio.run(serve(orders))
