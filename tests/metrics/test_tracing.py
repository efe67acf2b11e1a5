"""A trace a trajectory, over as many processes as play it."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stream_rl.metrics.playing import Playing, current
from stream_rl.metrics.tracing import Traces, annotate, span, spanned, start_otlp


def sample(number: int = 0, lease: int = 1) -> Playing:
    return Playing("demo", number, f"{number}-0", lease, lambda: lease - 1)


@contextmanager
def process(share: float = 1.0) -> Iterator[tuple[Traces, InMemorySpanExporter]]:
    """A producer's traces, and what it has exported."""
    exporter = InMemorySpanExporter()
    traces = Traces(SimpleSpanProcessor(exporter), share)
    try:
        yield traces, exporter
    finally:
        traces.close()


def ids(one: ReadableSpan) -> tuple[int, int, int | None]:
    """Trace, span and parent."""
    context = one.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id, one.parent.span_id if one.parent else None


@spanned("generate")
async def generate() -> int:
    annotate({"tokens": 7})
    return 7


async def play_turn() -> None:
    assert current() is not None
    with span("turn"):
        assert await generate() == 7
        with span("tool", tool="calculator"):
            await asyncio.sleep(0)


async def test_another_producer_goes_on_in_the_same_trace() -> None:
    with process() as (traces, exporter), traces.trajectory(sample()):
        await play_turn()
    first = exporter.get_finished_spans()
    with process() as (traces, exporter), traces.trajectory(sample(lease=2)) as again:
        await play_turn()
        traces.end(again, 1_700_000_000.0, reward=1.0)
    spans = [*first, *exporter.get_finished_spans()]

    assert [one.name for one in spans] == ["generate", "tool", "turn", "generate", "tool", "turn", "trajectory 0-0"]
    assert len({ids(one)[0] for one in spans}) == 1
    root = spans[-1]
    assert ids(root)[2] is None
    assert root.start_time == 1_700_000_000 * 10**9
    turns = [one for one in spans if one.name == "turn"]
    assert {ids(one)[2] for one in turns} == {ids(root)[1]}
    for turn, (generation, tool) in zip(turns, (spans[0:2], spans[3:5]), strict=True):
        assert ids(generation)[2] == ids(tool)[2] == ids(turn)[1]
    assert [dict(one.attributes or {})["turn"] for one in turns] == [0, 1]
    assert dict(spans[0].attributes or {})["tokens"] == 7


async def test_tasks_of_an_episode_write_into_its_trace_and_no_others() -> None:
    with process() as (traces, exporter):

        async def play(number: int) -> None:
            with traces.trajectory(sample(number)):
                await asyncio.gather(play_turn(), play_turn())

        await asyncio.gather(*(play(number) for number in range(5)))
        assert len({ids(one)[0] for one in exporter.get_finished_spans()}) == 5


async def test_the_same_share_of_samples_is_traced_by_every_process() -> None:
    def traced() -> set[int]:
        with process(0.25) as (traces, _):
            return {number for number in range(2000) if _is_traced(traces, number)}

    assert traced() == traced()
    assert 430 < len(traced()) < 570


def _is_traced(traces: Traces, number: int) -> bool:
    with traces.trajectory(sample(number)) as playing:
        return playing.traced


async def test_a_failure_is_written_into_the_span_that_it_left() -> None:
    with process() as (traces, exporter):
        with pytest.raises(ValueError, match="broken"), traces.trajectory(sample()), span("turn"):
            raise ValueError("broken")
        (turn,) = exporter.get_finished_spans()
    assert not turn.status.is_ok
    assert turn.events[0].name == "exception"


async def test_spans_reach_an_endpoint_by_otlp() -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base's
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        traces = start_otlp(f"http://127.0.0.1:{server.server_port}/v1/traces", 1.0)
        with traces.trajectory(sample()) as playing:
            await play_turn()
            traces.end(playing, 1_700_000_000.0, reward=1.0)
        await asyncio.to_thread(traces.close)
        server.shutdown()
        thread.join(10)

    sent = [ExportTraceServiceRequest.FromString(gzipped(body)) for body in received]
    spans = [span for one in sent for of in one.resource_spans for scope in of.scope_spans for span in scope.spans]
    assert {span.name for span in spans} == {"generate", "tool", "turn", "trajectory 0-0"}
    assert len({span.trace_id for span in spans}) == 1


def gzipped(body: bytes) -> bytes:
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


async def test_without_an_endpoint_there_is_no_span() -> None:
    traces = start_otlp(None, 1.0)
    with traces.trajectory(sample()) as playing:
        assert not playing.traced
        await play_turn()
        traces.end(playing, 0.0)
    assert current() is None
    traces.close()
