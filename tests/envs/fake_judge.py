"""An OpenAI-compatible endpoint with a script, in the test's own event loop or, for threads, in one of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web

Reply = str | int | float | dict[str, Any]
"""Text of a completion, an HTTP status, seconds to hang before the text "Score: 10", or the answer's whole body."""


class FakeJudge:
    """Answers by `reply(question)`; remembers bodies, headers, and how many requests were open at once."""

    def __init__(self, reply: Callable[[str], Reply]) -> None:
        self.reply = reply
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.open = self.most_open = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> FakeJudge:
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _start(self) -> str:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def _end(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            reply = self.reply(body["messages"][-1]["content"])
            if isinstance(reply, float):
                await asyncio.sleep(reply)
                reply = "Score: 10"
            await asyncio.sleep(0.01)
        finally:
            self.open -= 1
        if isinstance(reply, int):
            return web.Response(status=reply, text="not now")
        if isinstance(reply, dict):
            return web.json_response(reply)
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": reply}}]})
