"""Questions to a language model behind an OpenAI-compatible endpoint: few at a time, each asked once, all in one place.

A process has one client for each judge, with an event loop of its own in a thread, so that environments may wait for
answers in threads or in any loop. Equal questions share one request while it is under way, and its answer afterwards.
A question goes on when who asked it gives up: a step that is tried again then finds the answer. None goes on for longer
than its `deadline`, and nobody waits longer for one.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import hashlib
import os
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import aiohttp
import orjson
from pydantic import Field, field_validator

from stream_rl.config_sections import Settings
from stream_rl.errors import ConfigError, EnvFatalError, EnvInfraError
from stream_rl.metrics import catalog

__all__ = ["EndpointSettings", "JudgeClient", "Unanswered"]

Result = TypeVar("Result")

FIRST_PAUSE = 0.25
GRACE = 2.0
"""Seconds beyond a question's deadline after which the client itself counts as stuck."""
CLOSE_SECONDS = 5.0
REFUSALS = (400, 413, 422)
"""HTTP statuses that say that this question can never be answered."""
KEY_HINT = "; does environment.args.judge.api_key_env name the right key?"
URL_HINT = "; are environment.args.judge.url, often with /v1 at its end, and model right?"
HINTS = {401: KEY_HINT, 403: KEY_HINT, 404: URL_HINT}
"""What is likely wrong with the settings where an endpoint answers with such a status."""


class EndpointSettings(Settings):
    """Where the judge is, and what may be asked of it."""

    url: str
    """Base address of an OpenAI-compatible endpoint, for instance `http://127.0.0.1:30000/v1`."""
    model: str
    """The model's name there."""
    api_key_env: str | None = None
    """Environment variable with the API key; secrets never stand in a settings file."""
    temperature: float = Field(0.0, ge=0)
    """Sampling temperature of the judge."""
    max_tokens: int = Field(512, gt=0)
    """Tokens of an answer."""
    request: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the request, for instance `chat_template_kwargs`."""
    concurrency: int = Field(32, gt=0)
    """Requests of one producer at a time; further ones wait, and their wait is part of environment.step_timeout."""
    timeout: float = Field(15.0, gt=0)
    """Seconds that one request may take."""
    attempts: int = Field(3, gt=0)
    """Requests for one question before the step fails; together they should fit into environment.step_timeout."""
    deadline: float = Field(300.0, gt=0)
    """Seconds for one question in all, its wait for a free request included; then the step fails."""
    cache_size: int = Field(4096, ge=0)
    """Answers that a producer remembers, the newest used ones."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # of a port or a bracket
            right = False
        if not right:
            raise ValueError(f"{url!r} is no base address of an endpoint, as http://127.0.0.1:30000/v1 is")
        return url


class Unanswered(Exception):
    """No usable answer this time; asking again may help."""


class JudgeClient(Generic[Result]):
    """Asks one endpoint.

    Args:
        settings: the endpoint.
        read: what an answer says; raises Unanswered for one that says nothing.
    """

    def __init__(self, settings: EndpointSettings, read: Callable[[str], Result]) -> None:
        self._settings = settings
        self._read = read
        self._headers = _headers(settings)
        self._loop = asyncio.new_event_loop()
        self._known: OrderedDict[bytes, Result] = OrderedDict()
        self._asked: dict[bytes, asyncio.Task[Result]] = {}
        self._free = asyncio.Semaphore(settings.concurrency)
        self._session: aiohttp.ClientSession | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="judge", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    async def ask(self, messages: list[dict[str, str]]) -> Result:
        """What the judge says to chat messages. In any event loop.

        Raises:
            EnvInfraError: no usable answer within `attempts` or `deadline`.
            EnvFatalError: the endpoint refuses this question.
        """
        asked = asyncio.run_coroutine_threadsafe(self._ask(messages), self._loop)
        try:
            async with asyncio.timeout(self._settings.deadline + GRACE):
                return await asyncio.wrap_future(asked)
        except TimeoutError as error:
            raise self._late() from error

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Waits, in a thread that may block, for a coroutine that asks one question. Raises as `ask`."""
        asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return asked.result(self._settings.deadline + 2 * GRACE)
        except concurrent.futures.TimeoutError as error:
            asked.cancel()
            raise self._late() from error

    def close(self) -> None:
        """Ends the connections and the thread, at the latest when the process exits; gives up what is under way.

        Raises:
            EnvInfraError: they do not end within seconds.
        """
        atexit.unregister(self.close)
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        concurrent.futures.wait([closing], timeout=CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            raise EnvInfraError(f"the client of the judge at {self._settings.url} does not end", cause="timeout")
        self._loop.close()

    async def _close(self) -> None:
        for task in self._asked.values():
            task.cancel()
        if self._session is not None:
            await self._session.close()

    async def _ask(self, messages: list[dict[str, str]]) -> Result:
        body = orjson.dumps(self._body(messages), option=orjson.OPT_SORT_KEYS)
        key = hashlib.blake2b(body, digest_size=16).digest()
        if key in self._known:
            catalog.JUDGE_QUESTIONS.inc(outcome="cached")
            self._known.move_to_end(key)
            return self._known[key]
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = self._loop.create_task(self._answered(key, body))
            task.add_done_callback(lambda _: self._asked.pop(key))
        return await asyncio.shield(task)

    def _body(self, messages: list[dict[str, str]]) -> Mapping[str, Any]:
        settings = self._settings
        return {
            "model": settings.model,
            "messages": messages,
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
            **settings.request,
        }

    async def _answered(self, key: bytes, body: bytes) -> Result:
        try:
            async with asyncio.timeout(self._settings.deadline):
                return await self._asked_for(key, body)
        except TimeoutError as error:
            catalog.JUDGE_QUESTIONS.inc(outcome="failed")
            raise self._late() from error

    async def _asked_for(self, key: bytes, body: bytes) -> Result:
        attempts = self._settings.attempts
        for attempt in range(attempts):
            try:
                async with self._free:
                    answer = self._read(await self._post(body))
            except (Unanswered, TimeoutError, aiohttp.ClientError) as error:
                reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                if attempt + 1 < attempts:
                    catalog.JUDGE_QUESTIONS.inc(outcome="retried")
                    await asyncio.sleep(FIRST_PAUSE * 2**attempt * (0.5 + 0.5 * random.random()))
            else:
                catalog.JUDGE_QUESTIONS.inc(outcome="answered")
                self._remember(key, answer)
                return answer
        catalog.JUDGE_QUESTIONS.inc(outcome="failed")
        raise EnvInfraError(f"the judge at {self._settings.url} gave no answer in {attempts} attempts: {reason}")

    async def _post(self, body: bytes) -> str:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._settings.timeout)
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        url = f"{self._settings.url.rstrip('/')}/chat/completions"
        async with self._session.post(url, data=body) as response:
            text = await response.text(errors="replace")
        if response.status in REFUSALS:
            catalog.JUDGE_QUESTIONS.inc(outcome="refused")
            raise EnvFatalError(f"the judge at {self._settings.url} refuses a question: {text[:200]}")
        if response.status != 200:
            raise Unanswered(f"status {response.status}: {text[:200]}{HINTS.get(response.status, '')}")
        return _said(text)

    def _late(self) -> EnvInfraError:
        seconds = f"{self._settings.deadline:g} seconds"
        return EnvInfraError(f"no answer of the judge at {self._settings.url} within {seconds}", cause="timeout")

    def _remember(self, key: bytes, answer: Result) -> None:
        self._known[key] = answer
        while len(self._known) > self._settings.cache_size:
            self._known.popitem(last=False)


def _said(text: str) -> str:
    """What a chat completion says, whether its content is text or parts. Raises Unanswered for what is none."""
    try:
        content = orjson.loads(text)["choices"][0]["message"]["content"] or ""
        return content if isinstance(content, str) else "".join(part["text"] for part in content)
    except (orjson.JSONDecodeError, LookupError, TypeError) as error:
        raise Unanswered(f"no chat completion: {text[:200]!r}") from error


def _headers(settings: EndpointSettings) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if settings.api_key_env is not None:
        key = os.environ.get(settings.api_key_env)
        if not key:
            raise ConfigError(
                f"environment variable {settings.api_key_env} is not set: environment.args.judge.api_key_env names it"
            )
        headers["Authorization"] = f"Bearer {key}"
    return headers
