"""Threads for blocking environments: a call that hangs takes none from the others."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stream_rl.producer.env_threads import EnvThreads


async def test_a_blocking_call_leaves_the_event_loop_free():
    threads, release = EnvThreads(1), threading.Event()
    blocked = asyncio.create_task(threads.run(lambda: release.wait(5), 5))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not blocked.done()

    release.set()

    assert await blocked is True


async def test_calls_that_hang_use_no_thread_up():
    threads, release = EnvThreads(1), threading.Event()
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await threads.run(lambda: release.wait(5), 0.01)

    assert await threads.run(lambda: "free", 1) == "free"
    release.set()


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration(1)])
async def test_what_would_end_the_caller_is_a_failure_of_the_call(end):
    def work() -> None:
        raise end

    with pytest.raises(RuntimeError, match=type(end).__name__):
        await EnvThreads(1).run(work, 1)


async def test_no_more_than_the_limit_run_at_once():
    threads, running, most = EnvThreads(2), [], []
    lock = threading.Lock()

    def work() -> None:
        with lock:
            running.append(1)
            most.append(len(running))
        threading.Event().wait(0.005)
        with lock:
            running.pop()

    await asyncio.gather(*(threads.run(work, 5) for _ in range(12)))

    assert max(most) <= 2


async def test_what_a_call_raises_reaches_the_caller():
    def fail() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await EnvThreads(1).run(fail, 1)


async def test_threads_are_used_again():
    threads = EnvThreads(4)
    names = {await threads.run(threading.get_ident, 1) for _ in range(20)}

    assert len(names) == 1
