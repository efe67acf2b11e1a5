"""An engine in a process of its own that really receives weights; in everything else it is a fake one.

python receiving_engine.py FOLDER [VERSION]     every version goes to FOLDER; the process dies in the middle of VERSION
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import Backend, GroupName, PrefixStore, _new_process_group_helper, _world

from stream_rl.testing import FakeEngineServer, seeded

TIMEOUT = timedelta(seconds=20.0)
START_SECONDS = 120.0
DYING = 9
DIES_AT = 5
"""Of a version's tensors, the one in which a dying engine ends."""


class Receiver:
    """Its end of the group."""

    def __init__(self, engine: FakeEngineServer, folder: Path, dies_in: str | None) -> None:
        self._folder = folder
        self._dies_in = dies_in
        self._group: dist.ProcessGroup | None = None
        self._fake = dict(engine._controls)
        engine._controls |= {
            "init_weights_update_group": self.join,
            "destroy_weights_update_group": self.leave,
            "update_weights_from_distributed": self.receive,
        }

    def join(self, body: dict[str, Any]) -> str | None:
        name, size, rank = body["group_name"], body["world_size"], body["rank_offset"]
        store = TCPStore(body["master_address"], body["master_port"], size, is_master=False, timeout=TIMEOUT)
        prefixed = PrefixStore(name, store)
        self._group, _ = _new_process_group_helper(
            size, rank, [], Backend(body["backend"]), prefixed, group_name=GroupName(name), timeout=TIMEOUT
        )
        _world.pg_group_ranks[self._group] = {rank: rank for rank in range(size)}
        return self._fake["init_weights_update_group"](body)

    def leave(self, body: dict[str, Any]) -> str | None:
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None
        return self._fake["destroy_weights_update_group"](body)

    def receive(self, body: dict[str, Any]) -> str | None:
        assert self._group is not None
        received = {}
        for number, (name, shape, dtype) in enumerate(zip(body["names"], body["shapes"], body["dtypes"], strict=True)):
            if body["weight_version"] == self._dies_in and number == DIES_AT:
                os._exit(DYING)
            received[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            try:
                self._group.broadcast(received[name], 0).wait()
            except RuntimeError as error:
                return str(error)
        save_file(received, self._folder / body["weight_version"])
        return self._fake["update_weights_from_distributed"](body)


class EngineProcess:
    """Runs one for as long as its context; what it received is in `folder`, by version."""

    def __init__(self, folder: Path, dies_in: str | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        command = [sys.executable, __file__, str(folder), *([dies_in] if dies_in else [])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = ""

    async def __aenter__(self) -> Self:
        assert self.process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            self.url = (await asyncio.to_thread(self.process.stdout.readline)).strip()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()


async def serve(folder: Path, dies_in: str | None) -> None:
    async with FakeEngineServer(seeded(0, 32), vocab_size=32, version="default") as engine:
        Receiver(engine, folder, dies_in)
        sys.stdout.write(f"{engine.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
