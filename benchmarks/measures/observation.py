"""A producer as it is, one that nobody observes, and one whose trajectories are traced: what to play it with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from stream_rl.metrics.metric import Metric
from stream_rl.metrics.tracing import Traces
from stream_rl.producer.journal import BufferJournal

TRACED = 0.01


class _Encoded(SpanExporter):
    """As the OTLP exporter, but for the sending."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Makes the bytes."""
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


@contextmanager
def of(name: str) -> Iterator[dict[str, Any]]:
    """Keywords of `episodes.produced` for a contender: producer, unobserved or traced."""
    if name == "traced":
        traces = Traces(BatchSpanProcessor(_Encoded()), TRACED)
        try:
            yield {"traces": traces}
        finally:
            traces.close()
    elif name == "unobserved":
        with _without_metrics():
            yield {"logs": False}
    else:
        yield {}


@contextmanager
def _without_metrics() -> Iterator[None]:
    """Nothing is counted, and nothing computed that would be."""
    places: list[tuple[type, str]] = [(Metric, use) for use in ("inc", "set", "observe")]
    places += [(BufferJournal, count) for count in ("_count", "_count_end")]
    kept = [getattr(owner, name) for owner, name in places]
    for owner, name in places:
        setattr(owner, name, lambda *_values, **_labels: None)
    try:
        yield
    finally:
        for (owner, name), method in zip(places, kept, strict=True):
            setattr(owner, name, method)
