"""How weights travel to engines: through a folder that both sides reach, or by broadcasts from rank 0.

Both first take the policy's weights as they are (a collective), and can then send that version whenever engines join.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from stream_rl.consumer.model import Policy
from stream_rl.consumer.sender import GroupSender
from stream_rl.consumer.weights import WeightFolders, gather
from stream_rl.engine.publish import EngineUpdate, WeightPublisher
from stream_rl.engine.publish_group import GroupPublisher
from stream_rl.sample import WeightVersion

__all__ = ["DiskTransport", "GroupTransport", "WeightTransport"]


class WeightTransport(Protocol):
    """A way for weights to reach engines. Every rank has one; only rank 0's sends."""

    def prepare(self, version: WeightVersion) -> None:
        """Takes the policy's weights as they are now for `send`. A collective."""

    async def send(self, engines: Sequence[tuple[str, str]], version: WeightVersion) -> list[EngineUpdate]:
        """Gives engines (engine id, url) the weights taken last."""

    async def close(self) -> None:
        """Leaves nothing open."""


class DiskTransport:
    """Engines load a folder that they share with the trainer."""

    def __init__(self, folders: WeightFolders, publisher: WeightPublisher) -> None:
        self._folders = folders
        self._publisher = publisher

    def prepare(self, version: WeightVersion) -> None:
        """Writes the version's folder and removes the older ones: no update is under way. A collective."""
        self._folders.write(version)
        if dist.get_rank() == 0:
            self._folders.prune([version])

    async def send(self, engines: Sequence[tuple[str, str]], version: WeightVersion) -> list[EngineUpdate]:
        """Lets engines (engine id, url) load the version's folder."""
        return await self._publisher.publish(engines, version, self._folders.path(version))

    async def close(self) -> None:
        """Nothing is open."""


class GroupTransport:
    """Engines receive broadcasts from rank 0, which keeps the version for those that join until a step trains."""

    def __init__(self, policy: Policy, dtype: torch.dtype, sender: GroupSender, group: GroupPublisher) -> None:
        self._policy = policy
        self._dtype = dtype
        self._sender = sender
        self._group = group

    def prepare(self, version: WeightVersion) -> None:
        """Gathers the weights on rank 0, where one rank's own may be the very ones that are trained. A collective."""
        self._sender.set_weights(gather(self._policy, self._dtype))

    async def send(self, engines: Sequence[tuple[str, str]], version: WeightVersion) -> list[EngineUpdate]:
        """Broadcasts what was gathered to engines (engine id, url)."""
        return await self._group.publish(engines, version)

    async def close(self) -> None:
        """Leaves the group."""
        await self._group.close()
