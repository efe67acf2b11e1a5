"""A trajectory that is interrupted and taken up by another producer stays one trace, with turns from both."""

from __future__ import annotations

import asyncio
import logging

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rollouts import halving
from test_worker import ScriptedFleet, drained, train

from stream_rl.metrics.playing import current
from stream_rl.metrics.tracing import Traces
from stream_rl.producer.worker import Producer


async def test_a_trace_goes_on_with_the_producer_that_resumes(rollout, open_buffer):
    loaded = rollout(**{"producer.lease_seconds": 0.3})
    buffer = await open_buffer(loaded.config)
    exporters = [InMemorySpanExporter(), InMemorySpanExporter()]
    first, second = (Traces(SimpleSpanProcessor(exporter), 1.0) for exporter in exporters)

    fleet = ScriptedFleet(halving)
    fleet.hold.clear()
    await drained(Producer(loaded, buffer, fleet, "p", traces=first), fleet, asyncio.Event())
    first.close()
    playing = asyncio.create_task(
        Producer(loaded, buffer, ScriptedFleet(halving), "q", traces=second).run(asyncio.Event())
    )
    samples = await train(buffer, steps=2)
    await asyncio.wait_for(playing, 10)
    second.close()

    before, after = (exporter.get_finished_spans() for exporter in exporters)
    roots = {span.context.trace_id: span for span in after if span.name.startswith("trajectory ")}
    assert len(roots) == len(samples)
    cut = {span.context.trace_id for span in before if span.name == "turn"}
    assert cut
    assert cut <= roots.keys()
    for span in [*before, *after]:
        if span.name == "turn":
            assert span.parent.span_id == roots[span.context.trace_id].context.span_id
    assert {span.name for span in after} >= {"turn", "environment", "commit"}


async def test_lines_of_an_episode_know_whose_they_are(rollout, open_buffer, caplog):
    loaded = rollout(**{"producer.lease_seconds": 0.3})
    buffer = await open_buffer(loaded.config)
    seen = set()

    class Noting(ScriptedFleet):
        async def generate(self, *args, **kwargs):
            sample = current()
            assert sample is not None
            seen.add((sample.sample, sample.lease, sample.turn))
            return await super().generate(*args, **kwargs)

    with caplog.at_level(logging.INFO):
        playing = asyncio.create_task(Producer(loaded, buffer, Noting(halving), "p").run(asyncio.Event()))
        samples = await train(buffer, steps=1)
        await asyncio.wait_for(playing, 10)
    for sample in samples:
        assert {(str(sample.sample_id), 1, turn.index) for turn in sample.turns} <= seen
