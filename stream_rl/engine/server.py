"""One SGLang server as a process: started, waited for, ended.

Invariants: the server has its own process session, and every process of it ends with `stop`, with the server's own end,
or with the process that started it. What it says goes to one log file. A server that ends while it starts is an error
that shows the end of that log.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from stream_rl.config import Config
from stream_rl.engine import guard
from stream_rl.engine.client import EngineClient
from stream_rl.engine.ports import HOST, free_port
from stream_rl.errors import EngineUnavailable

__all__ = ["EngineServer", "launch_command", "launch_environment"]

STOP_SECONDS = 2.0
POLL_SECONDS = 0.25
LOG_TAIL = 2000
# SGLang keeps a few positions of its context for itself.
CONTEXT_MARGIN = 8


class EngineServer:
    """A process that serves one model. Not started by the constructor.

    Args:
        command, environment: what to run; `launch_command` and `launch_environment` make them.
        port: what the command serves on.
        log_path: gets the server's output; its folder is made.
        start_timeout: seconds that `wait_ready` waits.
    """

    def __init__(
        self, command: list[str], environment: dict[str, str], *, port: int, log_path: Path, start_timeout: float
    ) -> None:
        self.url = f"http://{HOST}:{port}"
        self._command = command
        self._environment = environment
        self._log_path = log_path
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def from_config(cls, config: Config, index: int, *, log_path: Path, seeded: bool = False) -> EngineServer:
        """The run's server number `index`; with `seeded`, requests' `sampling_seed` makes sampling replayable."""
        port = free_port() if config.engine.port is None else config.engine.port + index
        return cls(
            launch_command(config, index, port, seeded=seeded),
            launch_environment(config),
            port=port,
            log_path=log_path,
            start_timeout=config.engine.start_timeout,
        )

    def start(self) -> None:
        """Starts the process and returns at once."""
        assert self._process is None, "the server was started already"
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", guard.__file__, str(STOP_SECONDS), *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process that leads the server's session."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs; it may not answer yet."""
        return self._process is not None and self._process.poll() is None

    def wait_ready(self) -> None:
        """Waits until the server has generated a token.

        Raises:
            EngineUnavailable: it ended, or `start_timeout` seconds are over; the message has the end of its log.
        """
        asyncio.run(self._wait_ready(time.monotonic() + self._start_timeout))

    def wait_exit(self) -> None:
        """Waits, for as long as the server lives, and then raises EngineUnavailable with the end of its log."""
        assert self._process is not None, "the server was not started"
        self._process.wait()
        raise EngineUnavailable(f"the server at {self.url} ended; {self._log_tail()}")

    def stop(self) -> None:
        """Ends every process of the server: SIGTERM, and SIGKILL for what is left after 2 s. Harmless if it is over."""
        if self._process is None:
            return
        if self.alive:
            os.killpg(self.pid, signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
                self._process.wait(STOP_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def _wait_ready(self, deadline: float) -> None:
        async with EngineClient(self.url, vocab_size=1, attempts=1) as client:
            while True:
                if not self.alive:
                    raise EngineUnavailable(f"the server at {self.url} ended while it started; {self._log_tail()}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise EngineUnavailable(
                        f"the server at {self.url} did not start within engine.start_timeout="
                        f"{self._start_timeout:g} s; {self._log_tail()}"
                    )
                if await client.ready(timeout=left):
                    await client.probe(timeout=max(left, POLL_SECONDS))
                    return
                await asyncio.sleep(POLL_SECONDS)

    def _log_tail(self) -> str:
        text = self._log_path.read_bytes()[-LOG_TAIL:].decode(errors="replace").strip()
        return f"{self._log_path} ends with:\n{text}"


def launch_command(config: Config, index: int, port: int, *, seeded: bool = False) -> list[str]:
    """The command line of server number `index`. Each server samples by its own seed."""
    engine, rollout = config.engine, config.rollout
    command = [
        sys.executable, "-m", "sglang_seeded_launch" if seeded else "sglang.launch_server",
        "--model-path", config.model.path,
        "--dtype", config.model.dtype,
        "--host", HOST,
        "--port", str(port),
        "--random-seed", str(config.seed + index),
        "--context-length", str(rollout.max_context_len + CONTEXT_MARGIN),
        "--max-running-requests", str(engine.max_running_requests),
        "--enable-metrics",
        "--skip-server-warmup",
        "--skip-tokenizer-init",
        "--mm-preprocess-cache-size-mb", str(config.multimodal.engine_cache_mib),
        "--log-level-http", "warning",
    ]  # fmt: skip
    if seeded:
        command.append("--enable-deterministic-inference")
    if _on_cpu(config):
        command += [
            "--device", "cpu",
            "--attention-backend", "torch_native",
            "--sampling-backend", "pytorch",
            "--disable-cuda-graph",
            "--mem-fraction-static", "0.1",
            "--max-total-tokens", str(engine.max_total_tokens),
            "--sleep-on-idle",
        ]  # fmt: skip
    if _on_cpu(config) or engine.pause_mode == "in_place":
        command.append("--disable-overlap-schedule")
    return [*command, *engine.extra_args]


def launch_environment(config: Config) -> dict[str, str]:
    """This process's environment and what SGLang needs in it."""
    # Positions are bounded by rollout.max_context_len; the margin above it may pass the model's own bound.
    environment = {**os.environ, "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    # What an engine remembers of images is no part of the cache that a weight update flushes: it would be stale.
    environment["SGLANG_VLM_CACHE_SIZE_MB"] = "0"
    if _on_cpu(config):
        # A health check that generates waits behind a full queue.
        environment |= {
            "OMP_NUM_THREADS": str(config.engine.threads),
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        }
    if Path(config.model.path).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    return environment


def _on_cpu(config: Config) -> bool:
    device = config.engine.device
    return device == "cpu" or (device == "auto" and not torch.cuda.is_available())
