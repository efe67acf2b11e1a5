"""Several engines as one: where each request goes, and what happens to it when its engine dies.

    session's engine serves, not overloaded ──► stays: its prefix is cached there
    else                                    ──► the engine with the fewest requests of ours
    no answer from it                       ──► passed over for a while; the request goes to another
    no engine                               ──► waits for one, until the deadline

The fleet is told which engines serve (`refresh`); it asks nobody. An engine that is no longer named gives up its
requests, and they go to others. Loads are this process's own: every producer balances what it sends. With a router all
of this is the router's, and the fleet sends to that alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

from stream_rl.engine.client import EngineClient
from stream_rl.engine.generation import Generation, RequestOptions, SamplingParams
from stream_rl.engine.router import RouterClient
from stream_rl.errors import EngineUnavailable
from stream_rl.metrics import catalog
from stream_rl.metrics.tracing import annotate, spanned
from stream_rl.sample import Int32, WeightVersion

__all__ = ["Fleet", "choose"]

logger = logging.getLogger(__name__)

ROUTER = "router"

SESSIONS_REMEMBERED = 16384
# A session stays with its engine while that has at most this many requests more than twice the least loaded.
SLACK = 16


@dataclass(eq=False, slots=True)
class _Engine:
    engine_id: str
    client: EngineClient
    confirmed: WeightVersion | None = None
    doubted: WeightVersion | None = None
    """The confirmed version that its answers were last found to be older than."""
    calls: set[asyncio.Task[Any]] = field(default_factory=set)
    passed_over_until: float = 0.0
    gone: bool = False


class Fleet:
    """Sends generations to whichever engine suits. For one event loop; close it at the end.

    Args:
        vocab_size: of the served model.
        timeout: seconds that one `generate` may take, waiting for an engine and retries included.
        pass_over: seconds for which an engine that did not answer gets no requests.
        attempts: connection attempts on one engine before the request goes to another.
        router: URL of an sglang-router that stands before the engines.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        timeout: float = 600.0,
        pass_over: float = 5.0,
        attempts: int = 3,
        router: str | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._timeout = timeout
        self._pass_over = pass_over
        self._attempts = attempts
        self._router = router
        self._engines: dict[str, _Engine] = {}
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self._running: dict[str, _Engine] = {}
        self._changed = asyncio.Event()

    async def refresh(
        self, engines: Iterable[tuple[str, str]], confirmed: Mapping[str, WeightVersion | None] | None = None
    ) -> None:
        """Sets which engines serve, as (engine id, url). Known ones keep their connections and sessions.

        Args:
            confirmed: the version that each engine has said it serves; an older one in its answers is counted.
        """
        serving = dict(engines)
        named = serving if self._router is None else {ROUTER: self._router} if serving else {}
        gone = [engine for name, engine in self._engines.items() if named.get(name) != engine.client.url]
        for engine in gone:
            del self._engines[engine.engine_id]
            engine.gone = True
            for call in engine.calls:
                call.cancel()
        for name in named.keys() - self._engines.keys():
            kind = EngineClient if self._router is None else RouterClient
            client = kind(named[name], vocab_size=self._vocab_size, attempts=self._attempts)
            self._engines[name] = _Engine(name, client)
        for engine in self._engines.values():
            engine.confirmed = (confirmed or {}).get(engine.engine_id)
            if isinstance(engine.client, RouterClient):
                await engine.client.follow(serving.values())
        self._changed.set()
        for engine in gone:
            await engine.client.close()

    async def close(self) -> None:
        """Gives up every request and closes all connections."""
        await self.refresh([])

    @property
    def engines(self) -> tuple[str, ...]:
        """Ids of the engines that serve."""
        return tuple(self._engines)

    @spanned("generate")
    async def generate(
        self, session_id: str, input_ids: Int32, sampling: SamplingParams, **options: Unpack[RequestOptions]
    ) -> Generation:
        """`EngineClient.generate` on the session's engine, or on another.

        Raises:
            EngineUnavailable: the deadline is over; the message has what the last engine said.
            EngineRejected: the request itself is wrong.
            EngineError: an engine's answer contradicts itself.
        """
        last: EngineUnavailable | None = None
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    engine = await self._engine_for(session_id)
                    try:
                        return await self._call(engine, input_ids, sampling, options)
                    except EngineUnavailable as error:
                        last = error
                        engine.passed_over_until = asyncio.get_running_loop().time() + self._pass_over
        except TimeoutError as error:
            known = f"the last fault: {last}" if last else f"{len(self._engines)} engines serve"
            raise EngineUnavailable(f"no engine answered in {self._timeout:g} s; {known}") from error

    async def abort(self, rid: str) -> None:
        """Ends one request, which then returns what it has. Nothing happens if it is over, or waits for an engine."""
        if (engine := self._running.get(rid)) is not None:
            await engine.client.abort(rid)

    async def _call(
        self, engine: _Engine, input_ids: Int32, sampling: SamplingParams, options: RequestOptions
    ) -> Generation:
        confirmed, task, rid = engine.confirmed, asyncio.current_task(), options.get("rid")
        assert task is not None
        cancelling = task.cancelling()
        engine.calls.add(task)
        if rid is not None:
            self._running[rid] = engine
        try:
            generation = await engine.client.generate(input_ids, sampling, timeout=self._timeout, **options)
        except asyncio.CancelledError:
            # One cancellation is `refresh`'s, if the engine left; any other is the caller's own.
            if engine.gone and task.uncancel() <= cancelling:
                raise EngineUnavailable(f"engine {engine.client.url} left the run") from None
            raise
        finally:
            engine.calls.discard(task)
            if rid is not None:
                del self._running[rid]
        _check_stamps(generation, engine, confirmed)
        annotate(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.usage.input_tokens": generation.prompt_tokens,
                "gen_ai.usage.output_tokens": len(generation.tokens),
                "cached_tokens": generation.cached_tokens,
                "finish_reason": generation.finish_reason,
                "engine": engine.engine_id,
                "version": str(generation.spans[-1].version) if generation.spans else "",
            }
        )
        return generation

    async def _engine_for(self, session_id: str) -> _Engine:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            usable = {name: engine for name, engine in self._engines.items() if engine.passed_over_until <= now}
            if usable:
                loads = {name: len(engine.calls) for name, engine in usable.items()}
                name = choose(loads, self._sessions.get(session_id))
                self._remember(session_id, name)
                return usable[name]
            self._changed.clear()
            back = min((engine.passed_over_until for engine in self._engines.values()), default=None)
            try:
                async with asyncio.timeout_at(back):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _remember(self, session_id: str, engine_id: str) -> None:
        self._sessions[session_id] = engine_id
        self._sessions.move_to_end(session_id)
        if len(self._sessions) > SESSIONS_REMEMBERED:
            self._sessions.popitem(last=False)


def _check_stamps(generation: Generation, engine: _Engine, confirmed: WeightVersion | None) -> None:
    """Counts an answer that names an older version than the engine had confirmed before it was asked.

    Says so once a version: until the engine confirms another, all its answers are like that.
    """
    if confirmed is None or not generation.spans or generation.spans[0].version >= confirmed:
        return
    catalog.VERSION_MISMATCHES.inc(engine=engine.engine_id)
    if engine.doubted != confirmed:
        engine.doubted = confirmed
        logger.warning(
            "%s confirmed version %s and then wrote tokens as version %s",
            engine.engine_id, confirmed, generation.spans[0].version,
        )  # fmt: skip


def choose(loads: Mapping[str, int], current: str | None) -> str:
    """The engine for a session: `current` while it serves and is not overloaded, else the least loaded.

    Args:
        loads: requests under way by engine id, for each engine that serves; not empty.
    """
    least = min(loads, key=lambda name: (loads[name], name))
    if current is not None and loads.get(current, math.inf) <= 2 * loads[least] + SLACK:
        return current
    return least
