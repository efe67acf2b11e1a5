"""Runs a function on several trainer ranks, each a process of its own, and brings back what each returned."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from stream_rl.consumer.collectives import process_group

DEADLINE = 120.0


def on_ranks(count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Calls `work(*arguments)` inside a process group of `count` and returns the results by rank.

    A rank that raised gives the exception's text instead.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(count):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=((rank, count, f"{folder}/store"), sender, work, arguments))
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        try:
            return [_receive(pipe) for pipe in pipes]
        finally:
            for process in processes:
                process.kill()
                process.join()


def _receive(pipe: Connection) -> Any:
    if not pipe.poll(DEADLINE):
        raise TimeoutError("a rank did not answer")
    return pipe.recv()


def _rank(place: tuple[int, int, str], sender: Connection, work: Callable[..., Any], arguments: Any) -> None:
    torch.set_num_threads(1)
    rank, count, store = place
    try:
        with process_group(rank, count, f"file://{store}", torch.device("cpu"), DEADLINE):
            result = work(*arguments)
    except Exception as error:  # the parent asserts on it
        result = f"{type(error).__name__}: {error}"
    sender.send(result)
