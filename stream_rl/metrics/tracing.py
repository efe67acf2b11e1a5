"""One OpenTelemetry trace a trajectory: the trajectory, its turns, and in them generations, tool calls and commits.

    trajectory 12-3 ─┬─ turn ─┬─ generate
                     │        ├─ environment ── tool calculator
                     │        └─ commit
                     └─ turn ...                        perhaps of another producer, after the first has died

Trace id and root span follow from the names of run and sample alone. So a sample that is taken up again by another
process goes on in its trace, and is in the share that is traced exactly if it was before; the root span is written by
whoever ends the sample. Without a trace a span costs one look at a context variable.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from stream_rl.metrics.playing import Playing, current, playing

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.sdk.trace import SpanProcessor

__all__ = ["Traces", "annotate", "span", "spanned", "start_otlp"]

P = ParamSpec("P")
T = TypeVar("T")
Attribute = str | int | float | bool

_IDS: ContextVar[tuple[int, int] | None] = ContextVar("ids", default=None)


class Traces:
    """What of a process's samples is traced; `Traces(None)` is nothing.

    Args:
        processor: takes the spans.
        share: of trajectories that are traced.
    """

    def __init__(self, processor: SpanProcessor | None, share: float = 0.0) -> None:
        self._share = share
        self._provider = None if processor is None else _provider(processor)
        self._tracer = None if self._provider is None else self._provider.get_tracer("stream_rl")

    @contextmanager
    def trajectory(self, sample: Playing) -> Iterator[Playing]:
        """Makes `sample` the one that this task plays, and its trace, if it has one, the one that spans go to."""
        trace_id, root = _trace_id(sample), _root_id(sample)
        sample.tracer = self._tracer if trace_id % 2**32 < self._share * 2**32 else None
        with playing(sample), _in_trace(trace_id, root) if sample.traced else nullcontext():
            yield sample

    def end(self, sample: Playing, began: float, **attributes: Attribute) -> None:
        """Writes the root span of a sample that has ended, which began `began` seconds after the epoch."""
        if not sample.traced:
            return
        from opentelemetry.context import Context  # noqa: PLC0415 - only for runs with traces

        given = _IDS.set((_trace_id(sample), _root_id(sample)))
        try:
            named = {"gen_ai.operation.name": "invoke_agent", "run": sample.run, "sample": sample.sample, **attributes}
            sample.tracer.start_span(
                f"trajectory {sample.sample}", Context(), attributes=named, start_time=round(began * 1e9)
            ).end()
        finally:
            _IDS.reset(given)

    def close(self) -> None:
        """Sends what has not been sent."""
        if self._provider is not None:
            self._provider.shutdown()


def start_otlp(endpoint: str | None, share: float) -> Traces:
    """Traces that go to an OTLP endpoint over HTTP, in batches from a thread; nothing without an endpoint."""
    if endpoint is None or share == 0.0:
        return Traces(None)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    return Traces(BatchSpanProcessor(OTLPSpanExporter(endpoint)), share)


def span(name: str, **attributes: Attribute) -> AbstractContextManager[Any]:
    """A span around a block, if this task's sample is traced. An exception that leaves the block is written into it."""
    sample = current()
    if sample is None or not sample.traced:
        return nullcontext()
    opened: AbstractContextManager[Any] = sample.tracer.start_as_current_span(
        name, attributes={"turn": sample.turn, **attributes}
    )
    return opened


def annotate(attributes: Mapping[str, Attribute]) -> None:
    """Adds to the span that the block is in."""
    sample = current()
    if sample is not None and sample.traced:
        from opentelemetry.trace import get_current_span  # noqa: PLC0415 - as above

        get_current_span().set_attributes(attributes)


def spanned(name: str) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """The same for a coroutine function."""

    def around(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            sample = current()
            if sample is None or not sample.traced:
                return await function(*args, **kwargs)
            with span(name):
                return await function(*args, **kwargs)

        return call

    return around


def _trace_id(sample: Playing) -> int:
    return _digest(f"{sample.run}/{sample.sample}", 16)


def _root_id(sample: Playing) -> int:
    return _digest(f"root of {sample.run}/{sample.sample}", 8)


def _digest(text: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "big")


@contextmanager
def _in_trace(trace_id: int, root: int) -> Iterator[None]:
    from opentelemetry import context, trace  # noqa: PLC0415 - as above

    parent = trace.SpanContext(trace_id, root, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
    before = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(parent)))
    try:
        yield
    finally:
        context.detach(before)


def _provider(processor: SpanProcessor) -> Any:
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator  # noqa: PLC0415

    class GivenIds(RandomIdGenerator):
        """The ids of a root span are given, those of all others drawn."""

        def generate_trace_id(self) -> int:
            given = _IDS.get()
            return given[0] if given else super().generate_trace_id()

        def generate_span_id(self) -> int:
            given = _IDS.get()
            return given[1] if given else super().generate_span_id()

    resource = Resource.create({"service.name": "stream_rl"})
    provider = TracerProvider(id_generator=GivenIds(), resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider
