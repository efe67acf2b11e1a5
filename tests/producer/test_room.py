"""Waits for room are counted by what was full, and end by name when nothing else goes on."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from stream_rl.errors import BufferFull
from stream_rl.producer.room import RoomWatch


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def waited(limit: str) -> float:
    return REGISTRY.get_sample_value("stream_rl_room_wait_seconds_total", {"limit": limit}) or 0.0


def test_only_seconds_without_room_are_counted() -> None:
    clock = Clock()
    watch = RoomWatch(60.0, clock)
    for limit, seconds in (("", 7.0), ("maxmemory", 3.0), ("buffer.max_ready_groups", 2.0), ("", 9.0)):
        watch.looked(limit, progress=False)
        clock.now += seconds
    watch.looked("", progress=False)
    assert (waited("maxmemory"), waited("buffer.max_ready_groups")) == (3.0, 2.0)


def test_a_wait_in_which_nothing_goes_on_ends_and_names_the_limit() -> None:
    clock = Clock()
    watch = RoomWatch(60.0, clock)
    for _ in range(5):
        watch.looked("buffer.max_journal_mib", progress=True)
        clock.now += 59.0
    watch.looked("buffer.max_journal_mib", progress=False)
    clock.now += 3.0
    with pytest.raises(BufferFull, match=r"buffer\.room_timeout=60 s: raise buffer\.max_journal_mib"):
        watch.looked("buffer.max_journal_mib", progress=False)


def test_samples_that_others_play_are_waited_for_without_end() -> None:
    clock = Clock()
    watch = RoomWatch(60.0, clock)
    for _ in range(5):
        watch.looked("buffer.max_leased_samples", progress=False)
        clock.now += 61.0
    watch.looked("", progress=True)
    assert waited("buffer.max_leased_samples") == 5 * 61.0
