"""The engine model by hand: shared rounds, reading, queue, updates."""

from __future__ import annotations

import math

import pytest

from stream_rl.tuning import Machine
from stream_rl.tuning.engine_model import Engine, Request

MACHINE = Machine(slots=2, token_seconds=1.0, crowd_seconds=0.5, prefill_seconds=0.1, pause_mode="retract")


def request(tokens: int, *, read: int = 0, context: int = 0, cached_at: int = -1) -> Request:
    return Request(tokens, read, context, lambda _: None, cached_at=cached_at)


def end(engine: Engine) -> tuple[float, Request]:
    now = engine.next_end()
    engine.advance(now)
    return now, engine.end()


def test_alone_and_in_company() -> None:
    engine = Engine(MACHINE)
    long, short = request(10), request(2)
    engine.submit(long)
    engine.advance(3.0)  # two rounds of 1.5 s
    engine.submit(short)
    assert end(engine) == (7.0, short)  # two rounds of 2 s
    assert end(engine) == (16.0, long)  # six more, alone
    assert engine.generated == 12
    assert engine.next_end() == math.inf


def test_rounds_too_short_for_the_clock_are_written() -> None:
    engine = Engine(MACHINE.model_copy(update={"token_seconds": 1e-300, "crowd_seconds": 0.0}))
    engine.advance(1e6)
    engine.submit(request(5))
    now, ended = end(engine)
    assert (now, ended.written, engine.generated) == (1e6, {0: 5.0}, 5.0)


def test_what_is_new_is_read_first() -> None:
    engine = Engine(MACHINE)
    engine.submit(request(2, read=20, context=20))
    assert engine.next_end() == 2.0 + 3.0


def test_the_queue_is_served_in_order() -> None:
    engine = Engine(MACHINE)
    asked = [request(2), request(4), request(1), request(1)]
    for one in asked:
        engine.submit(one)
    assert engine.load == 4
    assert [end(engine)[1] for _ in range(4)] == [asked[0], asked[2], asked[1], asked[3]]
    assert asked[2].began_at == 4.0


def test_an_update_stamps_versions_and_reads_contexts_anew() -> None:
    engine = Engine(MACHINE)
    running = request(10, read=0, context=30, cached_at=0)
    engine.submit(running)
    engine.advance(6.0)  # four tokens
    engine.pause()
    engine.advance(100.0)
    assert engine.next_end() == math.inf
    engine.resume(7)
    # 34 tokens are read in 3.4 s, then six are written.
    now, ended = end(engine)
    assert now == 100 + 3.4 + 9
    assert ended.written == pytest.approx({0: 4, 7: 6})
    assert ended.cached_at == 1


def test_in_place_nothing_is_read_anew() -> None:
    engine = Engine(MACHINE.model_copy(update={"pause_mode": "in_place"}))
    running = request(2, context=30, cached_at=0)
    engine.submit(running)
    engine.pause()
    engine.resume(1)
    assert end(engine)[0] == 3.0


def test_a_prefix_that_was_flushed_is_read_again() -> None:
    engine = Engine(MACHINE)
    engine.pause()
    engine.resume(1)
    engine.submit(request(1, read=5, context=40, cached_at=0))
    engine.advance(engine.next_end())
    assert engine.next_end() == 4.0 + 1.5
    engine.end()
    engine.submit(request(1, read=5, context=40, cached_at=1))
    assert engine.next_end() == 4.0 + 1.5 + 0.5 + 1.5
