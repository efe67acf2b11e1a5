"""The engines' section of the settings. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stream_rl.config_sections import Settings

__all__ = ["EngineConfig"]


class EngineConfig(Settings):
    """The SGLang servers."""

    urls: list[str] = Field(default_factory=list)
    """Servers that already run. Empty: `count` servers are started and supervised."""
    count: int = Field(1, gt=0)
    """Servers to start."""
    router_url: str | None = None
    """An sglang-router that stands before these servers and spreads generations. Empty: producers spread their own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where started servers run."""
    port: int | None = Field(None, gt=0, lt=65536)
    """First port of the started servers; empty: free ones are chosen."""
    max_running_requests: int = Field(128, gt=0)
    """Requests that one server decodes at once."""
    max_total_tokens: int = Field(65536, gt=0)
    """Tokens in one server's KV pool (CPU; on GPUs memory decides)."""
    threads: int = Field(1, gt=0)
    """CPU threads of one server; 1 is best for tiny models, all cores from about 100M parameters on."""
    extra_args: list[str] = Field(default_factory=list)
    """Further arguments for `sglang.launch_server`."""
    weight_transfer: Literal["disk", "distributed"] = "disk"
    """How new weights reach the engines: a shared path, or a process group (gloo on CPU, NCCL on CUDA)."""
    pause_mode: Literal["retract", "in_place", "abort"] = "retract"
    """Running requests at a weight update: computed anew; kept on old KV (long contexts on GPUs; inexact); or ended."""
    update_timeout: float = Field(60.0, gt=0, le=1e6)
    """Seconds that one engine's weight update may take; beyond them it is put out, as if it had died."""
    start_timeout: float = Field(300.0, gt=0)
    """Seconds a server may take to come up."""
    request_timeout: float = Field(600.0, gt=0)
    """Seconds that one generation may take, connection retries included."""

    @property
    def servers(self) -> int:
        """How many the run has."""
        return len(self.urls) or self.count
