"""SGLang's HTTP API without a model: given tokens, a latency model, weight versions, pauses and faults.

    async with FakeEngineServer(scripted([7, 4]), vocab_size=32) as engine:
        async with EngineClient(engine.url, vocab_size=32) as client: ...

What it keeps of the real server: the shape of its answers; time in the queue; stop tokens included; images counted as
the tokens they are to the model; spans across an update inside a request; 400 for requests that are too long, named
twice, or would flush a busy cache; pauses, in which arrivals wait; an abort that returns the tokens so far, or none
from the queue; the version "default" until one is published.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, Self

import orjson
from aiohttp import web

from stream_rl.testing.fake_request import INSTANT, FakeRequest, Latency
from stream_rl.testing.fake_weights import Control, FakeWeights
from stream_rl.testing.token_sources import TokenSource

__all__ = ["FakeEngineServer", "Fault"]

Fault = Literal["drop", "500", "hang"]
"""The connection is cut without an answer; the server fails; no answer ever comes."""


class FakeEngineServer:
    """A server on this machine, in the caller's event loop; start and stop it, or use `async with`.

    Args:
        source: what each request is answered with.
        vocab_size: ids beyond it kill the server, as they kill the real one: every later request is dropped.
        context_length: prompt and new tokens together may not be more.
        max_running: requests that decode at once; the others wait in the queue.
        eos: token that ends every request, beside its own stop tokens.
        features: of an image as a request has it (a data URL), how many tokens it is to the model.
        version: weight version at the start; "default" is none.
        port: where it listens; 0 takes a free one.
        sleep: how time passes.

    `requests` holds the body of every /generate, `calls` the path and body of everything else. `input_log_prob` is what
    it says of its input's last token, when it is asked.
    """

    def __init__(
        self,
        source: TokenSource,
        *,
        vocab_size: int,
        context_length: int = 4096,
        max_running: int = 128,
        eos: int | None = None,
        features: Callable[[str], int] = lambda _image: 1,
        version: str = "0",
        port: int = 0,
        latency: Latency = INSTANT,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.url = ""
        self._port = port
        self.requests: list[dict[str, Any]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.input_log_prob: float | None = None
        self._source = source
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._eos = frozenset() if eos is None else frozenset({eos})
        self._features = features
        self._latency = latency
        self._sleep = sleep
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._live: dict[str, FakeRequest] = {}
        self._max_running = max_running
        self._slots = asyncio.Semaphore(max_running)
        self._running = 0
        self._arrival = asyncio.Event()
        self._going = asyncio.Event()
        self._going.set()
        self._dead = False
        self._weights = FakeWeights(version)
        self._controls: dict[str, Control] = {
            "abort_request": self._abort,
            "pause_generation": self._pause,
            "continue_generation": self._continue,
            **self._weights.controls,
        }
        self._runner: web.AppRunner | None = None

    def fail(self, path: str, *faults: Fault) -> None:
        """The next calls of `path` meet these faults, one each."""
        self._faults[path].extend(faults)

    async def arrived(self, count: int, *, timeout: float = 5.0) -> None:
        """Returns when `count` requests have arrived altogether. Raises TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            while len(self.requests) < count:
                self._arrival.clear()
                await self._arrival.wait()

    @property
    def version(self) -> str:
        """The weight version as the server writes it."""
        return self._weights.version

    @property
    def paused(self) -> bool:
        """Whether generation is paused."""
        return not self._going.is_set()

    def pause(self) -> None:
        """Holds every request where it is, as a weight update does."""
        self._going.clear()

    def resume(self) -> None:
        """Goes on after `pause`."""
        self._going.set()

    async def start(self) -> None:
        """Listens; `url` is known afterwards."""
        app = web.Application(middlewares=[self._faulty])
        app.router.add_post("/generate", self._generate)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/model_info", self._model_info)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_post("/{control}", self._control)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Cuts every connection, as a death of the server would."""
        assert self._runner is not None, "the server was not started"
        await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @web.middleware
    async def _faulty(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        faults = self._faults[request.path]
        fault = "drop" if self._dead else faults.popleft() if faults else None
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "drop":
            assert request.transport is not None
            request.transport.abort()
        return _answer({"error": {"message": "fault"}}, 500) if fault else await handler(request)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _ready(self, _request: web.Request) -> web.Response:
        return web.Response(status=503 if self.paused else 200)

    async def _model_info(self, _request: web.Request) -> web.Response:
        return _answer({"model_path": "fake", "weight_version": self.version})

    async def _server_info(self, _request: web.Request) -> web.Response:
        answer = {"model_path": "fake", "context_length": self._context_length, "disable_overlap_schedule": True}
        return _answer({**answer, "max_running_requests": self._max_running})

    async def _generate(self, http: web.Request) -> web.Response:
        body = orjson.loads(await http.read())
        self.requests.append(body)
        self._arrival.set()
        sampling = body.get("sampling_params", {})
        request = FakeRequest(
            rid=body.get("rid") or uuid.uuid4().hex,
            prompt=body["input_ids"],
            max_new_tokens=sampling.get("max_new_tokens", 128),
            stop_token_ids=self._eos | frozenset(sampling.get("stop_token_ids") or ()),
            image_tokens=sum(self._features(image) - 1 for image in body.get("image_data") or ()),
        )
        if refusal := self._refuse(request):
            return _answer({"error": {"message": refusal}}, 400)
        if any(not 0 <= token < self._vocab_size for token in request.prompt):
            self._dead = True
        self._live[request.rid] = request
        request.task = asyncio.create_task(self._decode(request))
        try:
            await asyncio.wait({request.task})
        finally:
            request.task.cancel()
            del self._live[request.rid]
        if request.task.cancelled():
            request.finish_reason = "abort"
        else:
            request.task.result()
        result = request.result(self.version)
        if self.input_log_prob is not None and "logprob_start_len" in body:
            result["meta_info"]["input_token_logprobs"] = [[self.input_log_prob, request.prompt[-1], None]]
        return _answer(result)

    def _refuse(self, request: FakeRequest) -> str | None:
        total = request.length + request.max_new_tokens
        if total > self._context_length:
            return f"{total} tokens requested, the context has {self._context_length}"
        if request.rid in self._live:
            return f"duplicate request id {request.rid}"
        return None if request.prompt else "input_ids cannot be empty"

    async def _decode(self, request: FakeRequest) -> None:
        clock = asyncio.get_running_loop().time
        arrived = clock()
        async with self._slots:
            await self._going.wait()
            request.queue_seconds = clock() - arrived
            self._running += 1
            try:
                await self._sleep(self._latency.prefill)
                for token, log_prob in itertools.islice(self._source(request.prompt), request.max_new_tokens):
                    await self._sleep(self._latency.of_token(self._running))
                    await self._going.wait()
                    request.tokens.append(token)
                    request.log_probs.append(log_prob)
                    request.versions.append(self.version)
                    if token in request.stop_token_ids:
                        request.finish_reason = "stop"
                        return
                if len(request.tokens) < request.max_new_tokens:
                    request.finish_reason = "stop"
            finally:
                self._running -= 1

    async def _control(self, http: web.Request) -> web.Response:
        body = orjson.loads(await http.read() or b"{}")
        self.calls.append((http.path, body))
        act = self._controls.get(http.match_info["control"])
        if act is None:
            return _answer({"error": {"message": f"no such endpoint {http.path}"}}, 404)
        refusal = act(body)
        return _answer({"success": refusal is None, "message": refusal or "done"}, 400 if refusal else 200)

    def _abort(self, body: dict[str, Any]) -> None:
        for rid, request in self._live.items():
            # The real server takes any prefix of an id for the id.
            if request.task is not None and (body.get("abort_all") or rid.startswith(body["rid"])):
                request.task.cancel()

    def _pause(self, body: dict[str, Any]) -> None:
        self.pause()
        if body.get("mode", "abort") == "abort":
            self._abort({"abort_all": True})

    def _continue(self, _body: dict[str, Any]) -> None:
        self.resume()


def _answer(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")
