"""The trainer's end of the process group that carries weights to the engines: rank 0, outside the trainer's own group.

The engines join with SGLang's recipe (a store, its prefix, torch's helper for one more group), so the same recipe is
followed here. What was sent is kept: until weights are updated again, an engine that joins is sent the same version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor, device
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import Backend, GroupName, PrefixStore, _new_process_group_helper, _world

from stream_rl.engine.client import TensorSpec
from stream_rl.errors import WeightUpdateFailed

__all__ = ["GroupSender", "tensor_specs"]


class GroupSender:
    """Implements `stream_rl.engine.publish_group.WeightSender`.

    Args:
        device: what the tensors are sent from: CUDA sends by NCCL.
        address: of this machine, as the engines reach it.
        timeout: seconds that one join or broadcast may take.
    """

    def __init__(self, device: device, *, address: str, timeout: float) -> None:
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        self._device = device
        self._address = address
        self._timeout = timedelta(seconds=timeout)
        self._weights: list[tuple[TensorSpec, Tensor]] = []
        self._store: TCPStore | None = None
        self._engines = 0
        self._group: dist.ProcessGroup | None = None

    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """What the next broadcasts send, by Hugging Face names."""
        self._weights = list(zip(tensor_specs(weights), weights.values(), strict=True))

    @property
    def tensors(self) -> Sequence[TensorSpec]:
        """What will be sent, in this order."""
        return [spec for spec, _ in self._weights]

    def listen(self, world_size: int) -> tuple[str, int]:
        """Opens the store of a new group and returns its address and port, without waiting for anybody."""
        # Joiners count themselves in the store by `world_size`, but only a server that waits for them looks.
        self._store = TCPStore(
            self._address, 0, world_size, is_master=True, timeout=self._timeout, wait_for_workers=False
        )
        self._engines = world_size - 1
        return self._address, self._store.port

    def join(self, name: str) -> None:
        """Becomes rank 0 of the group whose store listens; returns when all are there.

        Raises:
            WeightUpdateFailed: an engine did not come.
        """
        assert self._store is not None, "listen() comes first"
        try:
            self._group, _ = _new_process_group_helper(
                self._engines + 1,
                0,
                [],
                Backend(self.backend),
                PrefixStore(name, self._store),
                group_name=GroupName(name),
                timeout=self._timeout,
            )
            # torch forgets a group only if it knows whom the ranks stand for.
            _world.pg_group_ranks[self._group] = {rank: rank for rank in range(self._engines + 1)}
        except (RuntimeError, ValueError) as error:
            raise WeightUpdateFailed(f"the weight group of {self._engines} engines did not form: {error}") from error

    def broadcast(self, start: int, end: int) -> None:
        """Sends tensors[start:end], one broadcast each. Raises WeightUpdateFailed when the group is broken."""
        assert self._group is not None, "join() comes first"
        try:
            for _, tensor in self._weights[start:end]:
                self._group.broadcast(tensor.to(self._device), 0).wait()
        except RuntimeError as error:
            raise WeightUpdateFailed(f"the weight group broke: {error}") from error

    def close(self) -> None:
        """Leaves the group, if there is one, and closes its store."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
        self._group = self._store = None


def tensor_specs(weights: Mapping[str, Tensor]) -> list[TensorSpec]:
    """What they are called, and how they look, in their order."""
    return [
        TensorSpec(name, tuple(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in weights.items()
    ]
