"""What the engine client costs: EngineClient against a bare aiohttp loop, same server, same payloads, interleaved.

The server is a FakeEngineServer in a process of its own that answers at once, so what is measured is the client: it
encodes arrays, checks ids, names attempts for aborts, decodes answers into arrays and version spans, and keeps
deadlines. The bare loop posts ready-made bytes and decodes the JSON, and that is all.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import numpy as np
import orjson
from measures import command_line
from rich.console import Console
from rich.table import Table

from stream_rl.engine.client import EngineClient
from stream_rl.engine.generation import SamplingParams
from stream_rl.testing import FakeEngineServer, seeded

VOCABULARY = 1000
Request = Callable[[int], Awaitable[object]]


def serve(seed: int, ready: Connection) -> None:
    """Runs the server until the process is ended."""

    async def forever() -> None:
        async with FakeEngineServer(seeded(seed, VOCABULARY), vocab_size=VOCABULARY, version="0") as server:
            ready.send(server.url)
            await asyncio.Event().wait()

    asyncio.run(forever())


async def drive(request: Request, count: int, concurrency: int) -> tuple[float, float]:
    """Requests per second, and this process's CPU milliseconds per request."""
    slots = asyncio.Semaphore(concurrency)

    async def one(number: int) -> None:
        async with slots:
            await request(number)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*[one(number) for number in range(count)])
    return count / (time.perf_counter() - wall), (time.process_time() - cpu) * 1000 / count


async def measure(url: str, args: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Rounds of each contender, one after the other, over again."""
    ids = np.random.default_rng(args.seed).integers(0, VOCABULARY, args.prompt).astype(np.int32)
    sampling = SamplingParams(max_new_tokens=args.tokens)
    body = orjson.dumps(
        {
            "input_ids": ids.tolist(),
            "sampling_params": {"max_new_tokens": args.tokens, "temperature": 1.0},
            "return_logprob": True,
        }
    )
    results: dict[str, list[tuple[float, float]]] = {"bare aiohttp": [], "EngineClient": []}
    async with EngineClient(url, vocab_size=VOCABULARY) as client, aiohttp.ClientSession(url) as session:

        async def ours(_number: int) -> object:
            return await client.generate(ids, sampling)

        async def bare(_number: int) -> object:
            async with session.post("/generate", data=body) as answer:
                return orjson.loads(await answer.read())

        for _ in range(args.rounds):
            for name, request in (("bare aiohttp", bare), ("EngineClient", ours)):
                results[name].append(await drive(request, args.requests, args.concurrency))
    return results


def show(results: dict[str, list[tuple[float, float]]], file: Path | None) -> None:
    """Prints the table of medians and writes them as JSON."""
    medians = {
        name: dict(
            zip(("requests_per_second", "cpu_ms"), map(statistics.median, zip(*rounds, strict=True)), strict=True)
        )
        for name, rounds in results.items()
    }
    bare = medians["bare aiohttp"]["requests_per_second"]
    table = Table("client", "requests/s", "CPU ms a request", "of bare")
    for name, figures in medians.items():
        rate = figures["requests_per_second"]
        table.add_row(name, f"{rate:,.0f}", f"{figures['cpu_ms']:.3f}", f"{rate / bare:.2f}")
    Console().print(table)
    command_line.write(file, medians)


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = command_line.parser(__doc__, quick="two short rounds, some seconds")
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=256, help="prompt tokens")
    parser.add_argument("--tokens", type=int, default=32, help="generated tokens")
    args = parser.parse_args()
    args.rounds, args.requests = (2, 500) if args.quick else (7, 3000)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(args.seed, there), daemon=True)
    server.start()
    if not here.poll(60):
        raise TimeoutError("the fake server did not start within 60 s")
    show(asyncio.run(measure(here.recv(), args)), args.json)
    server.terminate()
    server.join(10)


if __name__ == "__main__":
    main()
