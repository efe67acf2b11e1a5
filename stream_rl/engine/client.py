"""The one client of SGLang's HTTP API, for one server. asyncio; token ids in, token ids and log-probs out.

Control calls answer for this server alone: a router in front of several knows none of them.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np

from stream_rl.engine.generation import (
    Generation,
    ImageInputs,
    SamplingParams,
    check_given,
    check_ids,
    check_read,
    decode_generation,
    encode_request,
)
from stream_rl.engine.transport import Transport
from stream_rl.errors import EngineError, EngineRejected, EngineUnavailable
from stream_rl.sample import Int32, WeightVersion

__all__ = [
    "CONTROL_SECONDS", "EngineClient", "Generation", "ImageInputs", "PauseMode", "SamplingParams", "ServerInfo",
    "TensorSpec",
]  # fmt: skip

PauseMode = Literal["retract", "in_place", "abort"]
CONTROL_SECONDS = 30.0
NO_VERSION = "default"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server was started with; without a context length it has the model's.

    `overlaps`: it prepares a batch while the last one runs, and then stamps under `in_place` one token of each request
    with a version that did not write it.
    """

    model_path: str
    context_length: int | None
    max_running_requests: int
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One weight, by its Hugging Face name; `dtype` as torch prints it, without the prefix: float32."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class EngineClient:
    """Calls one SGLang server. Use it from one event loop; close it, or enter it with `async with`.

    Args:
        url: the server's address.
        vocab_size: rows of the model's embedding; ids beyond it would kill the server and are refused here.
        attempts: how often a call is made before a fault counts as the server's end.

    Every method raises EngineRejected on 4xx, and EngineUnavailable when there is no answer in its `timeout` seconds.
    """

    def __init__(self, url: str, *, vocab_size: int, attempts: int = 6) -> None:
        self.url = url
        self.vocab_size = vocab_size
        self._transport = Transport(url, attempts=attempts)
        self._attempts_of: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; the server aborts what was still running for them."""
        await self._transport.close()

    async def generate(
        self,
        input_ids: Int32,
        sampling: SamplingParams,
        *,
        images: ImageInputs | None = None,
        extra_key: str | None = None,
        rid: str | None = None,
        timeout: float = 600.0,
    ) -> Generation:
        """Continues `input_ids` (int32 (p,)). While the engine is paused this waits.

        Args:
            images: those whose placeholders are among the ids; the engine keeps what it made of earlier turns' images.
            extra_key: requests share cached prefixes only under equal keys.
            rid: the name that `abort` knows the request by.

        Raises:
            EngineRejected: also for an id outside the vocabulary or a request longer than the context.
            EngineUnavailable: also when the engine has been given no weight version yet.
            PromptMismatch: the engine read other tokens than these.
            EngineError: the answer contradicts itself, has no token, or more than were asked for.
        """
        check_ids(input_ids, self.vocab_size)
        name = rid or uuid.uuid4().hex
        if name in self._attempts_of:
            raise EngineRejected(f"request {name!r} is running already")
        attempts = itertools.count()

        def body() -> dict[str, object]:
            # The server may still be running an attempt whose connection broke, and refuses its name. The slash keeps
            # one name from being a prefix of another: the server aborts by prefix.
            self._attempts_of[name] = f"{name}.{next(attempts)}/"
            return encode_request(input_ids, sampling, rid=self._attempts_of[name], extra_key=extra_key, images=images)

        try:
            answer = decode_generation(await self._transport.call("POST", "/generate", body, timeout=timeout))
        finally:
            del self._attempts_of[name]
        check_read(answer, len(input_ids))
        check_given(answer, sampling.max_new_tokens)
        return answer

    async def abort(self, rid: str, *, timeout: float = CONTROL_SECONDS) -> None:
        """Ends one request of this client, which then returns what it has. Nothing happens if it is over already."""
        if (name := self._attempts_of.get(rid)) is not None:
            await self._transport.call("POST", "/abort_request", {"rid": name}, timeout=timeout)

    async def pause(self, mode: PauseMode = "retract", *, timeout: float = CONTROL_SECONDS) -> None:
        """Stops generation. `retract` gives KV back and computes it anew afterwards; `in_place` keeps it; `abort` ends
        the running requests. In every mode requests that arrive wait."""
        await self._transport.call("POST", "/pause_generation", {"mode": mode}, timeout=timeout)

    async def continue_(self, *, timeout: float = CONTROL_SECONDS) -> None:
        """Goes on after `pause`."""
        await self._transport.call("POST", "/continue_generation", {}, timeout=timeout)

    async def update_weights_from_disk(
        self, path: Path | str, version: WeightVersion, *, flush: bool = True, timeout: float = CONTROL_SECONDS
    ) -> None:
        """Loads a Hugging Face folder that the server can read, as `version`; `flush` forgets every cached prefix.

        Requests paused `in_place` hold the cache: a flush then answers 400 although the weights are live.
        """
        body = {"model_path": str(path), "weight_version": str(version), "flush_cache": flush}
        await self._transport.call("POST", "/update_weights_from_disk", body, timeout=timeout)

    async def init_weights_group(
        self, name: str, *, address: str, port: int, rank: int, world_size: int, backend: str, timeout: float
    ) -> None:
        """Joins a process group whose store listens already at `address:port`: without it the engine is wedged."""
        body = {
            "group_name": name, "master_address": address, "master_port": port,
            "rank_offset": rank, "world_size": world_size, "backend": backend,
        }  # fmt: skip
        await self._transport.call("POST", "/init_weights_update_group", body, timeout=timeout, repeat=False)

    async def destroy_weights_group(self, name: str, *, timeout: float = CONTROL_SECONDS) -> None:
        """Leaves a process group; EngineRejected if the server is in none of that name."""
        body = {"group_name": name}
        await self._transport.call("POST", "/destroy_weights_update_group", body, timeout=timeout, repeat=False)

    async def begin_weight_update(self, *, timeout: float = CONTROL_SECONDS) -> None:
        """Opens the bracket that `update_weights_from_distributed` needs; EngineRejected if it is open."""
        await self._transport.call("POST", "/begin_weight_update", {}, timeout=timeout, repeat=False)

    async def end_weight_update(self, *, timeout: float = CONTROL_SECONDS) -> None:
        """Closes the bracket; EngineRejected if it is not open."""
        await self._transport.call("POST", "/end_weight_update", {}, timeout=timeout, repeat=False)

    async def update_weights_from_distributed(
        self,
        group: str,
        tensors: Sequence[TensorSpec],
        *,
        version: WeightVersion | None,
        flush: bool = True,
        timeout: float,
    ) -> None:
        """Receives `tensors`, in order, that rank 0 of the group broadcasts while this waits.

        With a `version` (the last of several calls) the cache is flushed, if `flush`. A name that the model does not
        know is accepted in silence, and a wrong shape leaves the weights half changed: compare them before.
        """
        body = {
            "group_name": group,
            "names": [tensor.name for tensor in tensors],
            "shapes": [tensor.shape for tensor in tensors],
            "dtypes": [tensor.dtype for tensor in tensors],
            "flush_cache": flush and version is not None,
            "weight_version": None if version is None else str(version),
        }
        await self._transport.call("POST", "/update_weights_from_distributed", body, timeout=timeout, repeat=False)

    async def weight_version(self, *, timeout: float = CONTROL_SECONDS) -> WeightVersion | None:
        """The version of the weights that the server has; None after its start."""
        info = await self._transport.call("GET", "/model_info", timeout=timeout)
        version = info.get("weight_version") if isinstance(info, dict) else info
        try:
            return None if version == NO_VERSION else WeightVersion.parse(str(version))
        except ValueError as error:
            raise EngineError(f"engine {self.url} has weights of another program: version {version!r}") from error

    async def server_info(self, *, timeout: float = CONTROL_SECONDS) -> ServerInfo:
        """What the server was started with."""
        info = await self._transport.call("GET", "/server_info", timeout=timeout)
        return ServerInfo(
            model_path=info["model_path"],
            context_length=info["context_length"],
            max_running_requests=info["max_running_requests"],
            overlaps=not info["disable_overlap_schedule"],
        )

    async def ready(self, *, timeout: float = CONTROL_SECONDS) -> bool:
        """Whether the server says that it takes requests; a paused one does not."""
        try:
            await self._transport.call("GET", "/ready", timeout=timeout, repeat=False)
        except EngineUnavailable:
            return False
        return True

    async def log_prob(self, input_ids: Int32, *, extra_key: str, timeout: float = 600.0) -> float:
        """The log-prob of the last of `input_ids` (int32 (p,), p >= 2), given those before it.

        Args:
            extra_key: as in `generate`; one that no earlier weights had, since cached prefixes are of the weights that
                computed them.

        Raises EngineError for an answer without it.
        """
        body = {
            "input_ids": input_ids, "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
            "return_logprob": True, "logprob_start_len": len(input_ids) - 2, "extra_key": extra_key,
        }  # fmt: skip
        answer = await self._transport.call("POST", "/generate", body, timeout=timeout)
        try:
            log_prob, token, _ = answer["meta_info"]["input_token_logprobs"][-1]
            if token == int(input_ids[-1]):
                return float("nan" if log_prob is None else log_prob)  # JSON has no NaN
        except (LookupError, TypeError, ValueError) as error:
            raise EngineError(f"engine {self.url} gave no log-prob of its input: {error}") from error
        raise EngineError(f"engine {self.url} gave the log-prob of token {token}, not of the input's last")

    async def probe(self, *, timeout: float = 10.0) -> None:
        """Generates one token: the only sign that the scheduler lives, for `/health` can lie. A paused engine fails."""
        body = {"input_ids": np.zeros(1, np.int32), "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
        await self._transport.call("POST", "/generate", body, timeout=timeout, repeat=False)
