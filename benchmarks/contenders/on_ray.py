"""Contenders that live in a Ray cluster: Ray's own Queue, an actor, and TransferQueue, a controller and storage actors.

Both are given what they are good at: TransferQueue tensors and its native interface in polling mode (without it the
controller sleeps for seconds whenever it has too little), batches of BATCH on the consumer's side, settings by default.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from contenders.contender import Contender
from contenders.payload import Pool
from contenders.process import descendants

NAMESPACE = "benchmark"
QUEUE = {"name": "queue", "namespace": NAMESPACE, "get_if_exists": True}
REVIVAL_SECONDS = 20.0
OBJECT_STORE_BYTES = 400 * 2**20
BATCH = 32
POLL_SECONDS = 0.004
TASK = "trainer"
FIELDS = ["number", "tokens", "loss_mask", "log_probs", "versions"]


def start_ray() -> str:
    """A cluster of this machine alone; gives its address."""
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("TQ_NUM_THREADS", str(os.cpu_count()))
    os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
    context = ray.init(
        address="local", namespace=NAMESPACE, num_cpus=8, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR", object_store_memory=OBJECT_STORE_BYTES,
    )  # fmt: skip
    return str(context.address_info["gcs_address"])


def stop_ray() -> None:
    """Ends the cluster."""
    import ray

    ray.shutdown()


def _join(address: str) -> None:
    import ray

    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")


class RayQueueProducer:
    """ray.util.queue.Queue.put_nowait_batch is not used: samples end one by one."""

    def __init__(self, address: str, seed: int) -> None:
        self._items = _ray_queue(address)
        self._pool = Pool(seed)

    def warm(self, tokens: int) -> None:
        """Makes the lists."""
        self._pool.of("lists", tokens)

    def put(self, tokens: int, first: int, count: int) -> None:
        """One call of the actor a sample."""
        samples = self._pool.of("lists", tokens)
        for number in range(first, first + count):
            self._items.put((number, samples[number % len(samples)]))


class RayQueueConsumer:
    """Queue.get."""

    def __init__(self, address: str) -> None:
        self._items = _ray_queue(address)

    def take(self, tokens: int, count: int, settle: bool = True) -> list[int]:
        """One by one."""
        return [self._items.get()[0] for _ in range(count)]

    def recover(self, tokens: int, count: int, patience: float) -> list[int]:
        """Whatever the actor still has."""
        from ray.exceptions import RayError
        from ray.util.queue import Empty

        taken: list[int] = []
        while len(taken) < count:
            try:
                taken.append(self._items.get(timeout=patience)[0])
            except (Empty, RayError):
                break
        return taken


class RayQueue(Contender):
    """Ray's Queue of lists of numbers."""

    name = "Ray Queue of lists"

    def __init__(self, folder: Path, seed: int, address: str) -> None:
        super().__init__(folder, seed)
        self._address = address

    def producer(self) -> Callable[[], RayQueueProducer]:
        return partial(RayQueueProducer, self._address, self.seed)

    def consumer(self) -> Callable[[], RayQueueConsumer]:
        return partial(RayQueueConsumer, self._address)

    def brokers(self) -> list[int]:
        return _actors("_QueueActor")

    def revive(self) -> None:
        self._create()

    def __enter__(self) -> RayQueue:
        self._create()
        return self

    def __exit__(self, *_: object) -> None:
        self._items.shutdown(force=True)

    def _create(self) -> None:
        from ray.exceptions import RayError
        from ray.util.queue import Queue

        deadline = time.monotonic() + REVIVAL_SECONDS
        while True:  # Ray may give out the dead actor for a while
            try:
                self._items = Queue(actor_options=QUEUE)
                self._items.empty()
            except RayError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return


class TransferQueueProducer:
    """TransferQueue's client: `put` of tensors, `batch` samples at a time."""

    def __init__(self, address: str, seed: int, batch: int) -> None:
        self._client = _transfer_queue_client(address)
        self._pool = Pool(seed)
        self._batch = batch
        self._partition = _partition(batch)
        self._batches: dict[int, Any] = {}

    def warm(self, tokens: int) -> None:
        """Makes the tensors, each field (batch, tokens)."""
        if tokens not in self._batches:
            self._batches[tokens] = tensors(self._pool.of("arrays", tokens)[: self._batch])

    def put(self, tokens: int, first: int, count: int) -> None:
        """One put for each batch."""
        import torch

        self.warm(tokens)
        data = self._batches[tokens]
        for start in range(first, first + count, self._batch):
            data["number"] = torch.arange(start, start + self._batch).unsqueeze(1)
            self._client.put(data, partition_id=self._partition)


class TransferQueueConsumer:
    """TransferQueue's client: `get_meta`, `get_data`, and `clear_samples` of what is settled."""

    def __init__(self, address: str, batch: int) -> None:
        self._client = _transfer_queue_client(address)
        self._partition = _partition(batch)

    def take(self, tokens: int, count: int, settle: bool = True) -> list[int]:
        """Batches of BATCH."""
        taken: list[int] = []
        while len(taken) < count:
            taken += self._read(min(BATCH, count - len(taken)), settle)
        return taken

    def recover(self, tokens: int, count: int, patience: float) -> list[int]:
        """What a dead consumer had fetched but not cleared, with the rest."""
        taken: list[int] = []
        try:
            self._client.reset_consumption(self._partition, TASK)
        except RuntimeError:  # no such partition: nothing is left
            return taken
        end = time.monotonic() + patience
        while len(taken) < count and time.monotonic() < end:
            if more := self._read(1, True):
                taken += more
                end = time.monotonic() + patience
        return taken

    def _read(self, count: int, settle: bool) -> list[int]:
        meta = self._client.get_meta(FIELDS, count, self._partition, task_name=TASK)
        if meta.size == 0:
            time.sleep(POLL_SECONDS)
            return []
        numbers = [int(number) for number in self._client.get_data(meta)["number"].unbind()]
        if settle:
            self._client.clear_samples(meta)
        return numbers


class TransferQueue(Contender):
    """TransferQueue with its default storage, a sample a put or eight: both share its one controller."""

    def __init__(self, folder: Path, seed: int, address: str, batch: int) -> None:
        super().__init__(folder, seed)
        self._address = address
        self._batch = batch
        self.name = f"TransferQueue, {batch} a put"

    def producer(self) -> Callable[[], TransferQueueProducer]:
        return partial(TransferQueueProducer, self._address, self.seed, self._batch)

    def consumer(self) -> Callable[[], TransferQueueConsumer]:
        return partial(TransferQueueConsumer, self._address, self._batch)

    def brokers(self) -> list[int]:
        return _actors("SimpleStorageUnit") + _actors("TransferQueueController")

    def revive(self) -> None:
        self.__exit__()
        self.__enter__()

    def __enter__(self) -> TransferQueue:
        import transfer_queue

        transfer_queue.init({"controller": {"polling_mode": True}})
        return self

    def __exit__(self, *_: object) -> None:
        import transfer_queue

        transfer_queue.close()


def _actors(name: str) -> list[int]:
    return [pid for pid, command in descendants(os.getpid()).items() if command.startswith(f"ray::{name}")]


def _ray_queue(address: str) -> Any:
    from ray.util.queue import Queue

    _join(address)
    return Queue(actor_options=QUEUE)


def _transfer_queue_client(address: str) -> Any:
    import transfer_queue

    _join(address)
    transfer_queue.init()
    return transfer_queue.get_client()


def _partition(batch: int) -> str:
    return f"train-{batch}"


def tensors(samples: list[dict[str, Any]]) -> Any:
    """A TensorDict of the samples' columns, each (samples, tokens)."""
    import torch
    from tensordict import TensorDict

    fields = {name: torch.stack([torch.from_numpy(sample[name]) for sample in samples]) for name in samples[0]}
    return TensorDict(fields, batch_size=len(samples))
