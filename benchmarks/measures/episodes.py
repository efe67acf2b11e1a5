"""Episodes of TURNS turns against an engine that answers at once: what one process does, and what that costs it.

bare       posts ready-made bodies, each turn's as long as the episode is then, and decodes the JSON
requests   the same requests through the fleet: arrays, names, deadlines, version spans
producer   all of it: leases, episodes, the environment, commits to a Valkey, metrics, turn log
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np
import orjson

from stream_rl.buffer import RunRules, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.engine.fleet import Fleet
from stream_rl.engine.generation import Generation, SamplingParams
from stream_rl.metrics.tracing import Traces
from stream_rl.metrics.turn_log import JsonLines
from stream_rl.models.tiny_text import WORDS
from stream_rl.producer.loading import Rollout
from stream_rl.producer.worker import Producer
from stream_rl.sample import Int32, WeightVersion
from stream_rl.testing import FakeEngineServer

TURNS, SIBLINGS = 20, 8
PATIENCE = 240.0
"""Seconds for one producer's run."""
END = WORDS.index("<|im_end|>")

Requests = Sequence[Int32]
"""One episode's inputs, turn by turn."""


class Figures(NamedTuple):
    """Turns a second, and this process's CPU milliseconds a turn."""

    per_second: float
    cpu_ms: float


def settings(folder: Path, model: Path, live: int, episodes: int, args: dict[str, int]) -> Config:
    """A run of so many episodes, all of which may begin at once."""
    return Config.parse(
        {
            "run": str(folder),
            "seed": args["seed"],
            "model": {"path": str(model)},
            "environment": {"path": "measures.world", "args": {"words": args["prompt"]}},
            "rollout": {
                "groups_per_step": episodes // SIBLINGS, "group_size": SIBLINGS, "max_turns": TURNS,
                "max_turn_len": args["tokens"] + 1, "max_response_len": 4000, "max_context_len": 4090,
            },
            "scheduling": {"run_ahead": 0},
            "trainer": {"steps": 1},
            "producer": {"concurrency": live},
        }
    )  # fmt: skip


async def serve(tokens: int, ready: Callable[[str], None]) -> None:
    """An engine that says the same at once, whatever it is asked, until it is ended."""

    async def at_once(_seconds: float) -> None:
        return

    def source(_prompt: Sequence[int]) -> Iterator[tuple[int, float]]:
        return iter(reply)

    reply = [(WORDS.index("lower"), -0.6931471805599453)] * (tokens - 1) + [(END, -0.12345678901234567)]
    async with FakeEngineServer(source, vocab_size=len(WORDS), max_running=1 << 20, sleep=at_once) as server:
        server.requests = _Forgetful()
        ready(server.url)
        await asyncio.Event().wait()


class _Forgetful(list[dict[str, object]]):
    def append(self, _request: dict[str, object]) -> None:
        """Hours of requests are not kept."""


class TimedFleet(Fleet):
    """A fleet that keeps, by turn, the seconds from one answer of an episode to its next request."""

    def __init__(self, url: str) -> None:
        super().__init__(vocab_size=len(WORDS), timeout=120.0)
        self.url = url
        self.between: defaultdict[int, list[float]] = defaultdict(list)
        self.requests: list[Int32] = []
        self.alone = itertools.count()
        self._answered: dict[str, tuple[int, float]] = {}

    async def generate(
        self, session_id: str, input_ids: Int32, sampling: SamplingParams, **keys: str | None
    ) -> Generation:
        """As Fleet's."""
        turn, answered = self._answered.pop(session_id, (0, 0.0))
        if turn:
            self.between[turn].append(time.perf_counter() - answered)
        if len(self.requests) < TURNS:
            self.requests.append(input_ids)
        answer = await super().generate(session_id, input_ids, sampling, **keys)
        self._answered[session_id] = turn + 1, time.perf_counter()
        return answer


async def drive(request: Callable[[int], Awaitable[object]], live: int, episodes: int) -> Figures:
    """Plays `episodes` times the requests of one episode, `live` episodes at once."""
    numbers = iter(range(episodes))

    async def player() -> None:
        for _ in numbers:
            for turn in range(TURNS):
                await request(turn)

    return await _measured(asyncio.gather(*[player() for _ in range(live)]), episodes * TURNS)


async def bare(url: str, requests: Requests, tokens: int, live: int, episodes: int) -> Figures:
    """A client that does nothing but ask, over connections that are open already, as the fleet's are."""
    sampling = {"max_new_tokens": tokens + 1, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "stop_token_ids": [END]}
    asked = {"sampling_params": sampling, "return_logprob": True, "rid": None}
    bodies = [orjson.dumps({"input_ids": ids.tolist(), **asked}) for ids in requests]
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post(turn: int) -> object:
            async with session.post("/generate", data=bodies[turn]) as answer:
                return orjson.loads(await answer.read())

        await asyncio.gather(*[post(0) for _ in range(live)])
        return await drive(post, live, episodes)


async def requests_alone(fleet: TimedFleet, requests: Requests, tokens: int, live: int, episodes: int) -> Figures:
    """The producer's requests without the rest of it."""
    sampling = SamplingParams(tokens + 1, stop_token_ids=(END,), sampling_seed=7)

    async def generate(turn: int) -> object:
        name = f"s/{next(fleet.alone)}"  # never one of an earlier call, whose answer came long ago
        return await fleet.generate(name, requests[turn], sampling, rid=name)

    return await drive(generate, live, episodes)


@asynccontextmanager
async def opened(rollout: Rollout, buffer_url: str, engine_url: str):  # type: ignore[no-untyped-def]
    """The buffer of a new run, with the engine serving."""
    async with await TrajectoryBuffer.of(rollout.config, buffer_url) as buffer:
        await buffer.open_run(RunRules.of(rollout.config))
        await buffer.engine_joined("engine-0", engine_url, 1)
        await buffer.engine_serving("engine-0", WeightVersion(0))
        yield buffer


async def produced(
    rollout: Rollout,
    buffer_url: str,
    fleet: TimedFleet,
    episodes: int,
    *,
    logs: bool = True,
    traces: Traces | None = None,
) -> Figures:
    """A producer that plays a whole run; with its turn log, or without, and with traces, if there are any."""
    turns = episodes * TURNS
    with JsonLines(rollout.config.folder / "turns.jsonl") as written:
        log = written if logs else None
        async with opened(rollout, buffer_url, fleet.url) as buffer:
            stop = asyncio.Event()
            playing = asyncio.create_task(Producer(rollout, buffer, fleet, "p", log, traces=traces).run(stop))

            async def committed() -> None:
                async with asyncio.timeout(PATIENCE):
                    while (await buffer.snapshot()).committed_turns < turns:
                        if playing.done():
                            playing.result()
                            raise RuntimeError("the producer has ended before its turns were committed")
                        await asyncio.sleep(0.05)

            figures = await _measured(committed(), turns)
            stop.set()
            await playing
    return figures


async def _measured(work: Awaitable[object], turns: int) -> Figures:
    wall, cpu = time.perf_counter(), time.process_time()
    await work
    return Figures(turns / (time.perf_counter() - wall), (time.process_time() - cpu) * 1000 / turns)


def of_run(rollout: Rollout, config: Config) -> Rollout:
    """The same loaded environment and tokenizer for another run."""
    return replace(rollout, config=config)


def growth(between: dict[int, list[float]]) -> float:
    """How many times the seconds of the last five turns those of the first five are."""
    first, last = ([x for turn in part for x in between[turn]] for part in (range(2, 7), range(TURNS - 5, TURNS)))
    assert first, "no turn was timed"
    assert last, "no late turn was timed"
    return float(np.median(last) / np.median(first))
