"""New weights through a process group: the trainer is rank 0, the engines are the others, each tensor is one broadcast.

    form the group (when the engines changed)   store listens ─► engines and trainer join
    every publish                               pause ─► begin ─► buckets of broadcasts ─► end ─► continue

An engine takes unknown names in silence, misses absent ones, and breaks on a wrong shape: so names and shapes are
compared with the checkpoint's before anything is sent. A fault in the middle may leave every engine of the group half
changed: all stay paused, the group is formed anew of those that still answer, and all of it is sent again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from safetensors import safe_open

from stream_rl.engine.client import EngineClient, TensorSpec
from stream_rl.engine.publish import (
    GROUP,
    UPDATE_PARTS,
    EngineUpdate,
    WeightPublisher,
    close_update,
    count,
    failure,
    resume,
    unless_absent,
)
from stream_rl.errors import EngineRejected, WeightUpdateFailed
from stream_rl.sample import WeightVersion
from stream_rl.stopwatch import timed

__all__ = ["GroupPublisher", "WeightSender", "buckets", "check_tensors", "checkpoint_shapes"]

BUCKET_BYTES = 256 * 2**20
ROUNDS = 3
"""How often all of it is sent: the second time without engines that do not answer, then without those at fault, too."""
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class WeightSender(Protocol):
    """The trainer's end of the group. The calls block, with deadlines of their own, and run in a thread.

    Each raises WeightUpdateFailed when the group is broken.
    """

    backend: str
    """gloo, or nccl."""

    @property
    def tensors(self) -> Sequence[TensorSpec]:
        """What will be sent, in this order, by Hugging Face names."""

    def listen(self, world_size: int) -> tuple[str, int]:
        """Opens the store of a new group and returns its address and port, without waiting for anybody."""

    def join(self, name: str) -> None:
        """Becomes rank 0 of the group whose store listens; returns when all are there."""

    def broadcast(self, start: int, end: int) -> None:
        """Sends tensors[start:end], one broadcast each."""

    def close(self) -> None:
        """Leaves the group, if there is one."""


class GroupPublisher:
    """Publishes through a process group that it keeps for as long as the engines stay the same.

    Args:
        publisher: has the connections and the deadline.
        sender: the trainer's end.
        shapes: name to shape of every weight in the checkpoint that the engines loaded (`checkpoint_shapes`).
        dtype: what the engines loaded them as.
    """

    def __init__(
        self, publisher: WeightPublisher, sender: WeightSender, shapes: Mapping[str, Sequence[int]], dtype: str
    ) -> None:
        self._publisher = publisher
        self._sender = sender
        self._shapes = shapes
        self._dtype = dtype
        self._members: dict[str, str] = {}
        self._paused_since: float | None = None

    async def publish(self, engines: Iterable[tuple[str, str]], version: WeightVersion) -> list[EngineUpdate]:
        """Sends the sender's tensors to every engine (engine id, url) as `version`; one result each, in their order.

        Raises:
            WeightUpdateFailed: the sender's names, shapes or dtypes are not the engines'. Nothing was sent.
        """
        check_tensors(self._sender.tensors, self._shapes, self._dtype)
        places, seconds = dict(engines), dict.fromkeys(UPDATE_PARTS, 0.0)
        self._paused_since = None
        with timed(seconds, "update"):
            errors = await self._until_taken(places, version, seconds)
        seconds["pause"] = 0.0 if self._paused_since is None else time.perf_counter() - self._paused_since
        updates = [EngineUpdate(engine_id, seconds, errors[engine_id]) for engine_id in places]
        count(updates)
        return updates

    async def _until_taken(
        self, engines: dict[str, str], version: WeightVersion, seconds: dict[str, float]
    ) -> dict[str, str | None]:
        """Sends until those that still answer have it all; why each engine failed, or None."""
        errors: dict[str, str | None] = {}
        for number in range(ROUNDS):
            faults = await self._send(engines, version, seconds)
            if not faults:
                ends = await self._on_each(engines, lambda client, _rank: self._end(client, version))
                return errors | dict.fromkeys(engines) | ends
            missed = f"the update of another engine failed: {next(iter(faults.values()))}"
            errors |= dict.fromkeys(engines, missed) | faults
            await self._dissolve(engines)
            engines = await self._still_good(engines, faults if number else {})
            if not engines:
                break
        return errors

    async def close(self) -> None:
        """Leaves the group."""
        await self._dissolve(self._members)

    async def _still_good(self, engines: Mapping[str, str], faults: Mapping[str, str]) -> dict[str, str]:
        """Those that answer; without those at fault, unless all are, perhaps on one's account."""
        silent = await self._on_each(engines, lambda client, _rank: _answers(client))
        lost = silent.keys() | (faults.keys() if faults.keys() < engines.keys() else ())
        return {engine_id: url for engine_id, url in engines.items() if engine_id not in lost}

    async def _send(self, engines: dict[str, str], version: WeightVersion, seconds: dict[str, float]) -> dict[str, str]:
        """One round; all stay paused. Returns why it failed, by engine; a fault of the sender's is every engine's."""
        if self._members != engines and (errors := await self._form(engines)):
            return errors
        self._paused_since = self._paused_since or time.perf_counter()
        errors = await self._on_each(engines, lambda client, _rank: self._open(client))
        with timed(seconds, "transfer"):
            for start, end in buckets(self._sender.tensors, BUCKET_BYTES):
                errors = errors or await self._send_bucket(engines, start, end, version)
        return errors

    async def _open(self, client: EngineClient) -> None:
        await self._publisher.pause(client)
        try:
            await client.begin_weight_update()
        except EngineRejected:  # an attempt before this one has left it open
            await close_update(client)
            await client.begin_weight_update()

    async def _end(self, client: EngineClient, version: WeightVersion) -> None:
        await close_update(client)
        await resume(client, version)

    async def _send_bucket(
        self, engines: Mapping[str, str], start: int, end: int, version: WeightVersion
    ) -> dict[str, str]:
        tensors = self._sender.tensors
        # The version comes with the last bucket, and the flush with the version.
        last = version if end == len(tensors) else None

        def receive(client: EngineClient, _rank: int) -> Awaitable[None]:
            return client.update_weights_from_distributed(
                GROUP, tensors[start:end], version=last, flush=self._publisher.flushes, timeout=self._publisher.timeout
            )

        return await self._together(engines, receive, lambda: self._sender.broadcast(start, end))

    async def _form(self, engines: dict[str, str]) -> dict[str, str]:
        await self._dissolve({**self._members, **engines})
        # The store must listen before an engine is told of it: an engine that finds none is lost.
        address, port = await asyncio.to_thread(self._sender.listen, len(engines) + 1)

        def join(client: EngineClient, rank: int) -> Awaitable[None]:
            return client.init_weights_group(
                GROUP, address=address, port=port, rank=rank, world_size=len(engines) + 1,
                backend=self._sender.backend, timeout=self._publisher.timeout,
            )  # fmt: skip

        errors = await self._together(engines, join, lambda: self._sender.join(GROUP))
        self._members = {} if errors else dict(engines)
        return errors

    async def _dissolve(self, engines: Mapping[str, str]) -> None:
        """Nobody is in a group afterwards; an engine that does not answer is found out by the next call to it."""
        self._members = {}
        await asyncio.to_thread(self._sender.close)
        await self._on_each(
            engines, lambda client, _rank: unless_absent(client.destroy_weights_group(GROUP, timeout=5.0))
        )

    async def _together(
        self, engines: Mapping[str, str], act: Callable[[EngineClient, int], Awaitable[None]], send: Callable[[], None]
    ) -> dict[str, str]:
        """Every engine's call and the sender's, at once."""
        errors, fault = await asyncio.gather(
            self._on_each(engines, act), failure(asyncio.to_thread(send), self._publisher.timeout)
        )
        return errors or ({} if fault is None else dict.fromkeys(engines, fault))

    async def _on_each(
        self, engines: Mapping[str, str], act: Callable[[EngineClient, int], Awaitable[None]]
    ) -> dict[str, str]:
        """Calls `act` with each engine's client and rank, at once; returns the failures."""
        timeout = self._publisher.timeout
        results = await asyncio.gather(
            *(failure(act(self._publisher.client(url), rank), timeout) for rank, url in enumerate(engines.values(), 1))
        )
        return {engine_id: error for engine_id, error in zip(engines, results, strict=True) if error is not None}


async def _answers(client: EngineClient) -> None:
    await client.weight_version(timeout=5.0)


def check_tensors(tensors: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]], dtype: str) -> None:
    """Raises WeightUpdateFailed, naming the first of them, when names, shapes or dtypes differ from the engines'."""
    given = {tensor.name: tensor for tensor in tensors}
    for name in shapes.keys() - given.keys():
        raise WeightUpdateFailed(f"the trainer has no weight {name}, which the checkpoint has")
    for name in given.keys() - shapes.keys():
        raise WeightUpdateFailed(f"the trainer has a weight {name}, which the checkpoint does not have")
    for name, tensor in given.items():
        if tuple(tensor.shape) != tuple(shapes[name]):
            raise WeightUpdateFailed(
                f"weight {name} has shape {tuple(tensor.shape)}; the checkpoint's is {tuple(shapes[name])}"
            )
        if tensor.dtype != dtype:
            raise WeightUpdateFailed(f"weight {name} is {tensor.dtype}; the engines have {dtype}")


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name to shape of every weight in a Hugging Face folder; reads only the headers of its safetensors."""
    shapes = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as weights:
            shapes.update({name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()})  # noqa: SIM118
    return shapes


def buckets(tensors: Sequence[TensorSpec], limit: int) -> Iterator[tuple[int, int]]:
    """Cuts the sequence into runs [start, end) of at most `limit` bytes; a larger tensor is a run of its own."""
    start, size = 0, 0
    for index, tensor in enumerate(tensors):
        bytes_ = math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
        if index > start and size + bytes_ > limit:
            yield start, index
            start, size = index, 0
        size += bytes_
    if tensors:
        yield start, len(tensors)
