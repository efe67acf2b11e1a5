"""What this machine must have: free ports, the devices that are asked for, processors enough, SGLang."""

from __future__ import annotations

import importlib.util
import os
import socket
from urllib.parse import urlsplit

import torch

from stream_rl.config import Config
from stream_rl.engine.ports import HOST
from stream_rl.errors import ConfigError

__all__ = ["check_machine", "check_ports"]

SECONDS_FOR_RAY = 5.0
PER_CPU = 4
"""Processes of a kind, or threads of one, for each processor: more only wait for each other."""


def check_ports(config: Config) -> None:
    """The ports that the settings name must be free, and the address for metrics this machine's. Raises ConfigError."""
    metrics, engine = config.metrics, config.engine
    ports = range(0) if engine.port is None or engine.urls else range(engine.port, engine.port + engine.count)
    if metrics.port in ports:
        raise ConfigError(f"engine.port={engine.port} leaves metrics.port={metrics.port} to an engine: choose another")
    _check_port("metrics.host" if metrics.port is None else "metrics.port", metrics.host, metrics.port)
    for port in ports:
        _check_port("engine.port", HOST, port)


def check_machine(config: Config) -> None:
    """Devices, processors and packages, where the run's processes start on this machine. Raises ConfigError."""
    address = config.supervision.ray_address
    if address not in ("local", "auto"):
        _check_ray(address)
    if address != "local":
        return
    if not config.engine.urls and importlib.util.find_spec("sglang") is None:
        raise ConfigError(
            "engine.urls is empty, and SGLang is not installed to start engines with: "
            "run `pip install 'stream_rl[sglang]'`, or name servers that run in engine.urls"
        )
    _check_devices(config, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    _check_sizes(config, os.cpu_count() or 1)


def _check_ray(address: str) -> None:
    """Ray itself would try for minutes."""
    try:
        parts = urlsplit(address if "://" in address else f"ray://{address}")
        socket.create_connection((parts.hostname or "", parts.port or 0), SECONDS_FOR_RAY).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"supervision.ray_address={address!r} cannot be reached ({getattr(error, 'strerror', None) or error}): "
            "start that cluster, or set it to auto or local"
        ) from error


def _check_devices(config: Config, gpus: int) -> None:
    wanted = {"trainer.device": config.trainer.device}
    if not config.engine.urls:
        wanted["engine.device"] = config.engine.device
    for setting, device in wanted.items():
        if device == "cuda" and not gpus:
            raise ConfigError(f"{setting}=cuda, but this machine has no CUDA device that works: set it to cpu or auto")
    ranks = config.trainer.world_size
    if gpus and config.trainer.device != "cpu" and ranks > gpus:
        raise ConfigError(f"trainer.world_size={ranks} is more than the {gpus} GPUs of this machine: lower it")


def _check_sizes(config: Config, cpus: int) -> None:
    sizes = {
        "trainer.world_size": config.trainer.world_size,
        "trainer.threads": config.trainer.threads,
        "engine.count": 0 if config.engine.urls else config.engine.count,
        "engine.threads": config.engine.threads,
        "producer.count": config.producer.count,
    }
    for setting, size in sizes.items():
        if size > PER_CPU * cpus:
            raise ConfigError(f"{setting}={size} is too much for the {cpus} CPUs of this machine: lower it")


def _check_port(setting: str, host: str, port: int | None) -> None:
    value = host if port is None else port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port or 0))
    except OverflowError as error:
        raise ConfigError(f"{setting}={value} is no port: the highest is 65535") from error
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{setting}={value} cannot be used on {host} ({reason}): choose another") from error
