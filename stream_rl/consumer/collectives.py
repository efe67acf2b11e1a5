"""The few collectives of the trainer, over plain bytes and float64: nothing is pickled.

Control data goes over gloo on the CPU beside whatever backend carries the shards. One rank is a group of one: there is
a single code path. A rank that fails leaves the group, which closes its connections, so that the others fail in their
next collective at once and not after `trainer.collective_timeout`: with RankLost, since the cause is not theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from stream_rl.consumer.batching import Floats
from stream_rl.errors import RankLost

__all__ = ["all_max", "all_sum", "barrier", "broadcast", "process_group"]


@contextmanager
def process_group(rank: int, world_size: int, init_method: str, device: torch.device, timeout: float) -> Iterator[None]:
    """The default process group for as long as the block runs.

    Args:
        rank, world_size, init_method: as torch.distributed wants them.
        device: where the shards live; CUDA adds NCCL.
        timeout: seconds that a collective may take before it raises.

    Raises:
        RankLost: the block was left by a collective's failure.
    """
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=init_method, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout)
    )
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):  # gloo's own have no class, but name its files
            raise RankLost(f"another rank ended before, or did not answer within {timeout:g} s: {error}") from error
        raise
    finally:
        dist.destroy_process_group()


def broadcast(message: bytes | None) -> bytes:
    """Rank 0's bytes, on every rank; what the others pass is not looked at."""
    size = torch.tensor([len(message) if message is not None else 0])
    dist.broadcast(size, src=0)
    content = torch.empty(int(size), dtype=torch.uint8)
    if dist.get_rank() == 0:
        assert message is not None
        content.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8))
    dist.broadcast(content, src=0)
    return content.numpy().tobytes()


def all_sum(values: Any) -> Floats:
    """The element-wise sum over ranks, float64 of the shape of `values`."""
    return _all_reduce(values, dist.ReduceOp.SUM)


def all_max(values: Any) -> Floats:
    """The element-wise maximum over ranks, float64 of the shape of `values`."""
    return _all_reduce(values, dist.ReduceOp.MAX)


def barrier() -> None:
    """Returns when every rank has come here."""
    all_sum([0.0])


def _all_reduce(values: Any, operation: Any) -> Floats:
    tensor = torch.from_numpy(np.array(values, np.float64))
    dist.all_reduce(tensor, op=operation)
    return tensor.numpy()
